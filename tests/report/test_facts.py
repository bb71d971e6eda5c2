"""Tests of partitioner.report.facts."""

from __future__ import annotations

from typing import Any

import pytest

from partitioner.report.console import to_text
from partitioner.report.facts import facts_grid
from tests.report.documents import GIB, MIB, plan_document, stage_document


def facts(**changes: Any) -> dict[str, list[str]]:
    """Values by label, as a reader sees them."""
    found: dict[str, list[str]] = {}
    label = ""
    text = to_text(facts_grid(plan_document(**changes)), width=200)
    for line in text.splitlines():
        label = line[:14].strip() or label
        found.setdefault(label, []).append(line[14:].strip())
    return found


def test_times_of_the_step() -> None:
    shown = facts()
    assert shown["step time"] == ["100 ms; 95.0 ms simulated"]
    expected = "20.0 % of stage time is idle; 18.0 % simulated"
    assert shown["bubble"] == [expected]
    expected = "stage 1, 3.71 ms per micro-batch (with communication 20.0 µs)"
    assert shown["bottleneck"] == [expected]


def test_bottleneck_without_extras() -> None:
    shown = facts(stages=[stage_document(0, ["net"])], bottleneck_stage=0)
    assert shown["bottleneck"] == ["stage 0, 3.69 ms per micro-batch"]


def test_bottleneck_is_the_named_stage() -> None:
    shown = facts(bottleneck_stage=0)
    expected = "stage 0, 3.69 ms per micro-batch (with recomputation 500 µs)"
    assert shown["bottleneck"] == [expected]


@pytest.mark.parametrize("gap", [0.0, 1e-9])
def test_a_closed_gap_is_called_optimal(gap: float) -> None:
    assert facts(gap=gap)["gap"] == ["optimal (proven for the prices used)"]


@pytest.mark.parametrize(
    ("gap", "share"), [(1.1e-9, "0.00"), (0.005, "0.50"), (0.5, "50.0")]
)
def test_an_open_gap_is_never_called_optimal(gap: float, share: str) -> None:
    expected = f"within {share} % of the best step time possible"
    assert facts(gap=gap)["gap"] == [expected]


@pytest.mark.parametrize(
    ("far", "replicas", "said"),
    [
        ([], 1, "no boundary lies between nodes (4 devices each)"),
        (
            [3],
            1,
            "2 nodes (4 devices each), 1.00 GiB/s and 30.0 µs between them, "
            "crossed after stage 3",
        ),
        (
            [1, 3],
            2,
            "2 nodes (4 devices each, 2 replicas), 1.00 GiB/s and 30.0 µs between "
            "them, crossed after stages 1, 3",
        ),
    ],
)
def test_a_cluster_says_what_crosses_its_nodes(far, replicas, said) -> None:
    options = plan_document()["options"] | {
        "cluster": {
            "devices_per_node": 4,
            "replicas": replicas,
            "between_nodes": {"bytes_per_s": GIB, "latency_s": 3e-5},
        }
    }
    cluster = {"nodes": 2, "far_boundaries": far}
    assert "cluster" not in facts()
    assert facts(options=options, cluster=cluster)["cluster"] == [said]


def test_solver_with_and_without_a_proof() -> None:
    assert facts()["solver"] == ["cbc in 710 ms; solved to the target"]
    provenance = {**plan_document()["provenance"], "proof": ""}
    assert facts(provenance=provenance)["solver"] == ["cbc in 710 ms"]


def test_checkpointed_blocks_with_their_price() -> None:
    expected = "stage 0: h.0…1 (500 µs of recomputation)"
    assert facts()["checkpointed"] == [expected]


def test_ties_name_their_stages() -> None:
    ties = [
        {"parameter": "wte.weight", "stages": [0, 3]},
        {"parameter": "norm.weight", "stages": [2]},
    ]
    assert facts(ties=ties)["ties"] == [
        "wte.weight on stages 0, 3",
        "norm.weight on stage 2",
    ]


def test_what_is_not_priced_is_listed() -> None:
    unpriced = [
        {"operator": "aten.foo", "count": 3, "where": "block.0 (file.py:12)"},
        {"operator": "aten.bar", "count": 1, "where": ""},
    ]
    assert facts(unpriced=unpriced)["not priced"] == [
        "aten.foo (3 times) in block.0 (file.py:12)",
        "aten.bar",
    ]


def test_full_prices_are_said_and_empty_lists_left_out() -> None:
    shown = facts(ties=[])
    assert shown["not priced"] == ["nothing: every operator has a price"]
    assert shown.keys().isdisjoint({"ties", "assumptions", "warnings"})


def test_assumptions_and_warnings_are_passed_on() -> None:
    shown = facts(assumptions=["caches are off"], warnings=["one", "two"])
    assert shown["assumptions"] == ["caches are off"]
    assert shown["warnings"] == ["one", "two"]


def test_few_guards_are_named() -> None:
    guards = [
        {"text": f"x.size(1) != {n}", "module": "m" * (n % 2), "source": "a.py:3"}
        for n in range(5)
    ]
    assert facts(guards=guards)["guards"] == [
        "x.size(1) != 0 (a.py:3, in the root)",
        "x.size(1) != 1 (a.py:3, in m)",
        "x.size(1) != 2 (a.py:3, in the root)",
        "… 2 more in the plan file",
    ]


def test_long_lists_are_cut_with_a_count() -> None:
    shown = facts(warnings=[f"w{n}" for n in range(14)])["warnings"]
    assert shown == [*(f"w{n}" for n in range(10)), "… 4 more in the plan file"]


def test_the_fullest_stage_says_what_fills_it() -> None:
    roomy = stage_document(0, ["a"], memory_bytes=5 * GIB)
    full = stage_document(1, ["b"], memory_bytes=5 * GIB + 640 * MIB)
    assert " ".join(facts(stages=[roomy, full])["memory"]) == (
        "stage 1, the fullest: 5.62 GiB = 512 MiB weights + 512 MiB gradients + "
        "2.00 GiB optimizer states + 128 MiB wire buffers + "
        "2.00 GiB activations in flight + 128 MiB sent tensors + "
        "384 MiB one layer recomputed, and its backward"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tail_transient_bytes": 384 * MIB}, "384 MiB backward after the last layer"),
        ({"reserved_bytes": GIB, "peak_bytes": GIB}, "1.00 GiB gradients of"),
        ({"static_bytes": 3 * GIB + 64 * MIB}, "64.0 MiB buffers of ZeRO"),
    ],
)
def test_the_moment_and_the_buffers_are_named(changes, words) -> None:
    memory = {**stage_document(0, ["a"])["memory"], **changes}
    stage = stage_document(0, ["a"], memory=memory)
    told = facts(stages=[stage], bottleneck_stage=0)["memory"]
    assert words in " ".join(told)


def test_the_optimizer_s_step_is_named_where_it_is_the_peak() -> None:
    memory = {**stage_document(0, ["a"])["memory"], "step_bytes": 4 * GIB}
    stage = stage_document(0, ["a"], memory=memory, memory_bytes=7 * GIB)
    assert facts(stages=[stage], bottleneck_stage=0)["memory"] == [
        "stage 0, the fullest: 7.00 GiB = 512 MiB weights + 512 MiB gradients + "
        "2.00 GiB optimizer states + 128 MiB wire buffers + "
        "4.00 GiB the optimizer's step (activations need less)"
    ]
