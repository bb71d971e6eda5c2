"""Tests of partitioner.report.explanation."""

from __future__ import annotations

from typing import Any

from partitioner.report import explanation_text

LIMIT = {"kind": "memory", "words": "memory: stage 1 is full", "step_s": 0.15}
FEWER = {
    "change": "1 stage",
    "step_s": 0.3,
    "simulated_s": 0.29,
    "bubble_share": 0.0,
    "memory_bytes": 2**31,
    "reason": "",
}
MORE = {
    **dict.fromkeys(FEWER),
    "change": "3 stages",
    "reason": "at most 2 are possible",
}


def explained(**changes: Any) -> str:
    document: dict[str, Any] = {
        "step_s": 0.2,
        "bound_s": 0.19,
        "proof": "solved",
        "even_s": 0.16,
        "even_bubble_share": 0.125,
        "limits": [LIMIT],
        "variants": [FEWER, MORE],
        **changes,
    }
    text = explanation_text(document)
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_everything_is_said() -> None:
    assert explained() == (
        "bound the step takes 200 ms, and no plan takes less than 190 ms (solved)"
        " equal stages that send nothing would take 160 ms, of which 12.5 % is bubble"
        " limited by memory: stage 1 is full"
        " what if 1 stage: 300 ms (+50.0 %), bubble 0.00 %, at most 2.00 GiB on a stage"
        " 3 stages: no plan; at most 2 are possible"
    )


def test_a_plan_without_limits_is_told_so() -> None:
    shown = explained(limits=[])
    assert "limited by nothing but the work itself and the bubble" in shown


def test_limits_are_listed_under_one_label() -> None:
    other = {**LIMIT, "words": "communication: 3 tensors"}
    shown = explained(limits=[LIMIT, other])
    assert "limited by memory: stage 1 is full communication: 3 tensors" in shown
