"""Plans for stages that are replayed as CUDA graphs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from partitioner import MemoryLimitError, OptionError, Plan, measure_model, partition
from partitioner.cost import Measurements
from partitioner.plan.replayed import check_replayed, replayed_bytes

STAGES, WIDTH = 2, 16


def model() -> nn.Sequential:
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6))
    return nn.Sequential(*blocks)


@functools.cache
def late_host() -> Measurements:
    """Return timings by which the host needs three times what the device does."""
    timings = measure_model(model(), example_inputs=torch.zeros(8, WIDTH), device="cpu")
    blocks = {
        name: replace(each, host_s=3 * (each.forward_s + each.backward_s))
        for name, each in timings.blocks.items()
    }
    return replace(timings, blocks=blocks)


def planned(**options: Any) -> Plan:
    example = torch.zeros(8, WIDTH)
    return partition(model(), STAGES, example_inputs=example, **options)


def test_the_host_does_not_count():
    plain = planned(measurements=late_host())
    replayed = planned(measurements=late_host(), cuda_graphs=True)
    assert all(stage.host_bound for stage in plain.score.stages)
    assert not any(stage.host_bound for stage in replayed.score.stages)
    assert replayed.simulation.step_s < plain.simulation.step_s
    assert "compile=True or cuda_graphs=True" in str(plain)
    assert "host's time is not counted: CUDA graphs" in str(replayed)


def test_a_file_remembers(tmp_path):
    path = tmp_path / "plan.json"
    planned(device="cpu", cuda_graphs=True).save(path)
    assert Plan.load(path, model()).options.cuda_graphs


def test_every_micro_batch_in_flight_has_memory_of_its_own():
    score = planned(device="cpu", checkpointing="none").stages[0].score
    one, two, three = (replayed_bytes(score, count) for count in (1, 2, 3))
    assert three - two == two - one >= score.reserved_bytes + score.transient_bytes
    # All of it is there while the optimizer steps.
    assert one >= score.static_bytes + score.in_flight_bytes + score.step_bytes


def test_what_does_not_fit_is_refused():
    plan = planned(device="cpu", memory_limit=2**30)
    check_replayed(plan)
    needed = max(
        replayed_bytes(stage.score, plan.problem.in_flight[stage.index])
        for stage in plan.stages
    )
    assert needed > max(stage.memory_bytes for stage in plan.stages)
    check_replayed(planned(device="cpu", memory_limit=needed))
    with pytest.raises(MemoryLimitError, match="cuda_graphs=True does not fit") as told:
        check_replayed(planned(device="cpu", memory_limit=needed - 1))
    assert told.value.needed_bytes == needed
    assert "memory of its own" in told.value.message
    # What it suggests fits by itself: what replays add is left out.
    assert f"memory_limit={needed - 1 - added(plan, told.value.stage)}" in (
        told.value.hint
    )


def added(plan: Plan, stage: int | None) -> int:
    found = plan.stages[stage or 0]
    whole = replayed_bytes(found.score, plan.problem.in_flight[found.index])
    return whole - found.memory_bytes


def test_no_limit_below_nothing_is_suggested():
    options: dict[str, Any] = {"device": "cpu", "checkpointing": "all"}
    example = torch.zeros(8, WIDTH)
    plan = partition(model(), 6, example_inputs=example, **options)
    least = max(stage.memory_bytes for stage in plan.stages)
    tight = partition(model(), 6, example_inputs=example, memory_limit=least, **options)
    with pytest.raises(MemoryLimitError) as told:
        check_replayed(tight)
    assert added(tight, told.value.stage) > least
    assert "memory_limit" not in told.value.hint


def test_zero_takes_gradients_as_they_come():
    with pytest.raises(OptionError, match="cuda_graphs with zero_stage=1"):
        planned(device="cpu", cuda_graphs=True, zero_stage=1)
