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
from partitioner.solve import check_room, needed_bytes
from partitioner.solve.room import stage_replayed_bytes
from tests.timeline.recorded import document, written

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
    one, two, three = (stage_replayed_bytes(score, count) for count in (1, 2, 3))
    assert three - two == two - one >= score.reserved_bytes + score.transient_bytes
    # All of it is there while the optimizer steps.
    assert one >= score.static_bytes + score.in_flight_bytes + score.step_bytes


def replayed_bytes(plan: Plan) -> int:
    """Return what the fullest rank of a plan holds when it is replayed."""
    return max(needed_bytes(replace(plan.problem, cuda_graphs=True), plan.score))


def test_what_does_not_fit_is_refused():
    needed = replayed_bytes(plain := planned(device="cpu", memory_limit=2**30))
    assert needed > max(stage.memory_bytes for stage in plain.stages)
    fits = planned(device="cpu", memory_limit=needed)
    check_room(fits.problem, fits.assignment)
    refused = planned(device="cpu", memory_limit=needed - 1)
    with pytest.raises(MemoryLimitError, match="cuda_graphs=True does not fit") as told:
        check_room(refused.problem, refused.assignment)
    assert told.value.needed_bytes == needed
    assert "memory of its own" in told.value.message
    assert "plan with cuda_graphs=True, which keeps room" in told.value.hint


def wide(stages: int = STAGES, **options: Any) -> Plan:
    """Return a plan whose activations take more than its weights."""
    example = torch.zeros(4096, WIDTH)
    return partition(model(), stages, example_inputs=example, device="cpu", **options)


def test_a_plan_for_it_keeps_room():
    tight = replayed_bytes(wide()) - 1
    refused = wide(memory_limit=tight)
    with pytest.raises(MemoryLimitError):
        check_room(refused.problem, refused.assignment)
    kept = wide(memory_limit=tight, cuda_graphs=True)
    check_room(kept.problem, kept.assignment)
    assert sum(kept.assignment.recomputed) > sum(refused.assignment.recomputed)
    assert {stage["memory_limit_bytes"] for stage in kept.to_dict()["stages"]} == {
        tight
    }


def test_planning_again_keeps_room(tmp_path):
    plain = wide()
    kept = wide(memory_limit=replayed_bytes(plain) - 1, cuda_graphs=True)
    # A run that took what was predicted without: recomputing less is faster again.
    trace = written(tmp_path / "trace.json", document(plain.simulation, stages=STAGES))
    again = kept.replan(trace)
    check_room(again.problem, again.assignment)


def test_stages_without_room_are_not_proposed():
    kept = wide(3, memory_limit=replayed_bytes(wide(3)), cuda_graphs=True)
    asked = {
        "memory_limit": kept.options.memory_limit_bytes,
        "micro_batches": kept.options.micro_batches,
    }
    wide(4, **asked)  # fits as it is
    with pytest.raises(MemoryLimitError) as told:
        wide(4, cuda_graphs=True, **asked)
    _, more = kept.explain().variants
    assert (more.change, more.step_s) == ("4 stages", None)
    assert more.reason == told.value.message


def test_where_none_has_room_it_is_said_when_planning():
    least = max(stage.memory_bytes for stage in wide(checkpointing="all").stages)
    with pytest.raises(MemoryLimitError, match="cuda_graphs=True does not fit") as told:
        wide(memory_limit=least, checkpointing="all", cuda_graphs=True)
    assert "more stages" in told.value.hint
    # Without graphs the pin is no trouble, nor is it here.
    with pytest.raises(MemoryLimitError, match="cuda_graphs=True does not fit"):
        wide(memory_limit=least, checkpointing="all", cuda_graphs=True, pin={"0": 0})


def test_zero_takes_gradients_as_they_come():
    with pytest.raises(OptionError, match="cuda_graphs with zero_stage=1"):
        planned(device="cpu", cuda_graphs=True, zero_stage=1)
