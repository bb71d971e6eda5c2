"""What is made of the seconds of stages that ran alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.estimates import (
    estimated_step_s,
    estimates_table,
    wrong_losses,
)
from benchmarks.speed.results import Results
from partitioner.simulate import ChunkPrice, PipelinePrice, simulate
from partitioner.simulate.from_deepspeed import one_f_one_b


@pytest.mark.parametrize("seconds", [(3.0, 5.0), (5.0, 3.0), (4.0, 4.0), (7.0,)])
@pytest.mark.parametrize("micro_batches", [1, 2, 9])
def test_the_estimated_step_is_at_least_that_of_deepspeeds_schedule(
    seconds, micro_batches
):
    chunks = tuple(
        ChunkPrice(
            forward_s=total * 0.25,
            input_gradient_s=total * 0.5,
            weight_gradient_s=total * 0.25,
            in_flight_bytes=1,
        )
        for total in seconds
    )
    free = (0.0,) * (len(seconds) - 1)
    price = PipelinePrice(chunks=chunks, activation_s=free, gradient_s=free)
    simulated = simulate(one_f_one_b(len(seconds), micro_batches), price)
    too_long_s = estimated_step_s(seconds, micro_batches) - simulated.step_s
    if seconds[-1] == max(seconds) or micro_batches == 1:
        assert too_long_s == 0
    else:
        assert 0 < too_long_s <= max(seconds) - min(seconds)


def line(loss: float, *seconds: float, dtype: str = "float32") -> dict[str, Any]:
    stage = {
        "host_s": 0.1, "predicted_s": 0.2, "predicted_host_s": 0.1, "peak_bytes": 2**30,
    }  # fmt: skip
    return {
        "items": 60,
        "unit": "samples",
        "dtype": dtype,
        "stages": [{"seconds": each, **stage} for each in seconds],
        "loss": loss,
        "cut": [],
        "total_s": 1.0,
    }


def results(folder: Path, **lines: dict[str, Any]) -> Results:
    found = Results(folder / "results.jsonl")
    for name, each in lines.items():
        found.add(("toy", 2, f"eager/{name}".replace("_", "-"), 0), **each)
    return found


def test_rates_stand_next_to_two_devices_and_to_what_is_cut_by_hand(tmp_path):
    found = results(
        tmp_path,
        one_gpu=line(1.0, 5.0),
        hand_parameters=line(1.0, 2.0, 4.0),
        hand_planned=line(1.0, 3.0, 3.0),
        ours_free=line(1.0, 2.5, 2.5),
    )
    rows = {
        row.split()[0]: row.split()[1:]
        for row in estimates_table(found).splitlines()
        if row.startswith("eager/")
    }
    # 60 samples in 2 x 5 s, 4 + 4 + 2 s, 3 x 3 s, 3 x 2.5 s.
    assert rows["eager/one-gpu"][:4] == ["6", "0.500", "0.900", "1.000"]
    assert rows["eager/hand-parameters"][:4] == ["6", "0.500", "0.900", "1.000"]
    assert rows["eager/hand-planned"][:4] == ["7", "0.556", "1.000", "1.111"]
    assert rows["eager/ours-free"][:4] == ["8", "0.667", "1.200", "1.333"]


def test_the_table_says_what_it_is(tmp_path):
    table = estimates_table(results(tmp_path, one_gpu=line(1.0, 5.0)))
    assert "ESTIMATES from stages that ran alone" in table
    assert "not a pipeline's throughput" in table


@pytest.mark.parametrize(
    ("dtype", "loss", "wrong"),
    [
        ("float32", 7.00001, False),
        ("float32", 7.0001, True),
        ("bfloat16", 7.1, False),
        ("bfloat16", 7.2, True),
    ],
)
def test_a_loss_that_is_not_one_gpus_is_named(tmp_path, dtype, loss, wrong):
    found = results(
        tmp_path,
        one_gpu=line(7.0, 5.0, dtype=dtype),
        ours_free=line(loss, 2.0, 2.0, dtype=dtype),
    )
    named = wrong_losses(found)
    assert [each.split(":")[0] for each in named] == ["toy 2 eager/ours-free"] * wrong
    assert ("WRONG" in estimates_table(found)) is wrong


def test_nothing_is_said_of_losses_while_one_gpu_has_not_run(tmp_path):
    assert wrong_losses(results(tmp_path, ours_free=line(7.0, 2.0, 2.0))) == []
