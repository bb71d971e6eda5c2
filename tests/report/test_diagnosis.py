"""Tests of partitioner.report.diagnosis."""

from __future__ import annotations

from typing import Any

from partitioner.report.console import to_text
from partitioner.report.diagnosis import diagnosis_report


def document(*findings: dict[str, Any]) -> dict[str, Any]:
    counts = {
        severity: sum(f["severity"] == severity for f in findings)
        for severity in ("error", "warning", "info")
    }
    return {
        "deepspeed": "1.2.3",
        "counts": counts,
        "findings": list(findings),
        "machine": None,
    }


def finding(severity: str, **entries: Any) -> dict[str, Any]:
    return {
        "severity": severity,
        "code": "zero-stage",
        "where": "zero[optimization]",
        "why": "it does not",
        "change": "another",
        "edits": [],
        **entries,
    }


def lines(*findings: dict[str, Any]) -> list[str]:
    return to_text(diagnosis_report(document(*findings))).splitlines()


def test_no_finding_is_one_line():
    assert lines() == ["0 errors, 0 warnings, 0 notes (DeepSpeed 1.2.3)"]


def test_a_finding_is_read_from_where_to_what():
    assert lines(finding("error")) == [
        "error zero-stage: zero[optimization]",
        "  why    it does not",
        "  change another",
        "",
        "1 error, 0 warnings, 0 notes (DeepSpeed 1.2.3)",
    ]


def test_what_can_be_mended_is_marked_and_counted():
    shown = lines(finding("info", edits=[{"path": "a", "value": 1}]), finding("info"))
    assert shown[2] == "  change another [--fix]"
    assert shown[6] == "  change another"
    assert shown[-1].endswith("2 notes (DeepSpeed 1.2.3); --fix mends 1")


def test_long_sentences_fit():
    shown = lines(finding("warning", why="word " * 60, change="word " * 60))
    assert max(map(len, shown)) <= 80
    assert all(line.startswith("         word") for line in shown[2:4])


def test_facts_that_were_read_stand_above_the_summary():
    gpu = {
        "address": "0000:17:00.0",
        "vendor": "NVIDIA",
        "numa_node": None,
        "width": 8,
        "max_width": 16,
    }
    machine = {
        "cores": [0, 1],
        "node_cores": {"0": [0], "1": [1]},
        "accelerators": [gpu],
        "interfaces": ["eth0"],
        "infiniband": ["mlx5_0"],
        "shared_memory_bytes": 2**30,
    }
    shown = to_text(diagnosis_report({**document(), "machine": machine})).splitlines()
    assert shown[:-2] == [
        "  cores    2 on 2 NUMA nodes",
        "  GPUs     NVIDIA 0000:17:00.0: NUMA node unknown, PCIe lanes 8 of 16",
        "  network  eth0, mlx5_0",
        "  /dev/shm 1.00 GiB",
    ]


def test_facts_that_could_not_be_read_have_no_line():
    machine = dict.fromkeys(
        ("cores", "node_cores", "accelerators", "interfaces", "shared_memory_bytes")
    )
    shown = to_text(diagnosis_report({**document(), "machine": machine})).splitlines()
    assert len(shown) == 2
