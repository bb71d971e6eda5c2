"""Tests of partitioner.report.comparison."""

from __future__ import annotations

from typing import Any

from partitioner.report import comparison_text


def split(name: str, **changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "name": name,
        "bottleneck_s": 0.012,
        "step_s": 0.21,
        "simulated_s": 0.2,
        "bubble_share": 0.15,
        "memory_bytes": 3 * 2**30,
        "recompute_s": 0.0,
        "faults": [],
    }
    assert changes.keys() <= defaults.keys()
    return {**defaults, **changes}


def lines(*splits: dict[str, Any]) -> list[str]:
    text = comparison_text({"splits": list(splits)})
    return [" ".join(line.split()) for line in text.splitlines()]


def test_cuts_are_measured_against_the_first() -> None:
    shown = lines(
        split("this plan"),
        split("slower", simulated_s=0.25, recompute_s=0.001),
        split("faster", simulated_s=0.19),
    )
    assert "this plan 12.0 ms 15.0 % 3.00 GiB – 200 ms –" in shown
    assert "slower 12.0 ms 15.0 % 3.00 GiB 1.00 ms 250 ms +25.0 %" in shown
    assert "faster 12.0 ms 15.0 % 3.00 GiB – 190 ms -5.0 %" in shown


def test_what_cannot_be_trained_is_marked_and_said() -> None:
    shown = lines(split("this plan"), split("big", faults=["out of memory on stage 1"]))
    assert "big ! 12.0 ms 15.0 % 3.00 GiB – 200 ms –" in shown
    assert "! big: out of memory on stage 1" in shown


def test_the_table_fits_80_columns() -> None:
    wide = split(
        "DeepSpeed parameters",
        bottleneck_s=0.123456,
        simulated_s=123.0,
        memory_bytes=1023 * 2**20,
        recompute_s=0.00123456,
        bubble_share=0.9994,
        faults=["nothing on stages 1, 2, 3", "out of memory on stages 0, 4"],
    )
    text = comparison_text({"splits": [split("this plan"), wide]})
    assert max(map(len, text.splitlines())) <= 80
    assert "DeepSpeed parameters !" in text
