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
from partitioner.options import parse_devices
from partitioner.plan.replayed import added_bytes, check_replayed, replayed_bytes

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
    assert "CUDA graphs: no time of the host, up to" in str(replayed)


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
    assert "plan with cuda_graphs=True, which keeps room" in told.value.hint


def wide(**options: Any) -> Plan:
    """Return a plan whose activations take more than its weights."""
    example = torch.zeros(4096, WIDTH)
    return partition(model(), STAGES, example_inputs=example, device="cpu", **options)


def test_a_plan_for_it_keeps_room():
    plain = wide()
    tight = max(stage.memory_bytes for stage in plain.stages) + added_bytes(plain) - 1
    refused = wide(memory_limit=tight)
    with pytest.raises(MemoryLimitError):
        check_replayed(refused)
    kept = wide(memory_limit=tight, cuda_graphs=True)
    check_replayed(kept)
    assert sum(kept.assignment.recomputed) > sum(refused.assignment.recomputed)
    assert {stage["memory_limit_bytes"] for stage in kept.to_dict()["stages"]} == {
        tight
    }


def test_where_none_has_room_it_is_said_when_planning():
    least = max(stage.memory_bytes for stage in wide(checkpointing="all").stages)
    with pytest.raises(MemoryLimitError, match="cuda_graphs=True does not fit") as told:
        wide(memory_limit=least, checkpointing="all", cuda_graphs=True)
    assert "more stages" in told.value.hint


def test_devices_have_limits_of_their_own():
    limits = [2**40, 1]
    devices = [{"memory_limit": limit} for limit in limits]
    plan = wide(devices=[{"memory_limit": 2**40}] * 2)
    small = replace(
        plan,
        options=replace(plan.options, devices=parse_devices(devices, STAGES)),
    )
    with pytest.raises(MemoryLimitError) as told:
        check_replayed(small)
    assert (told.value.stage, told.value.limit_bytes) == (1, 1)


def test_zero_takes_gradients_as_they_come():
    with pytest.raises(OptionError, match="cuda_graphs with zero_stage=1"):
        planned(device="cpu", cuda_graphs=True, zero_stage=1)
