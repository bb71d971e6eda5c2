"""All ranks build the plan of rank 0, or all say why not."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import deepspeed
import pytest
import torch
import torch.distributed as dist

from partitioner import PartitionerError, Plan, RuntimeGuardError, partition
from tests.distributed.launch import launch
from tests.models import MODELS, gpt2
from tests.placements import random_assignment

pytestmark = pytest.mark.distributed


def _plan(model: torch.nn.Module) -> Plan:
    example = MODELS["gpt2-labels"].example()
    return partition(model, 2, example_inputs=example, device="cpu", gap=0.05)


def _build(plan: Plan) -> tuple[str, str]:
    try:
        module = plan.pipeline_module()
    except PartitionerError as error:
        return type(error).__name__, error.message
    names = sorted(name for name, _ in module.named_parameters())
    return "built", " ".join(names)


def other_cut_on_rank_1() -> tuple[str, str, str]:
    plan = _plan(gpt2(0.0))
    if dist.get_rank() == 1:
        moved = random_assignment(plan, random.Random(3))
        assert moved.stage_of != plan.assignment.stage_of
        plan = replace(plan, assignment=moved)
    held = " ".join(sorted(_held(_plan(gpt2(0.0)), dist.get_rank())))
    return (*_build(plan), held)


def _held(plan: Plan, stage: int) -> set[str]:
    """Return what a stage of the solver's own plan holds, by name in its segment."""
    start, stop = plan.layers.parts[stage : stage + 2]
    specs = plan.layer_specs()[start:stop]
    return {
        f"{start + offset}.{name}"
        for offset, spec in enumerate(specs)
        for name, _ in spec.build().named_parameters()
    }


def test_rank_0_decides():
    for kind, names, held in launch(2, other_cut_on_rank_1):
        assert kind == "built"
        assert names == held


def other_schedule_on_rank_1(mine: str, other: str) -> str:
    model, example = gpt2(0.0), MODELS["gpt2-labels"].example()
    schedule = other if dist.get_rank() == 1 else mine
    plan = partition(
        model, 2, example_inputs=example, device="cpu", gap=0.05, schedule=schedule
    )
    engine, *_ = plan.initialize(config={"steps_per_print": 10**9})
    found = type(engine._train_schedule()).__name__
    engine.destroy()
    return found


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        ("eager-1f1b", "1f1b", "EagerSchedule"),
        ("1f1b", "dualpipev", "TrainSchedule"),
    ],
)
def test_rank_0_decides_on_the_schedule(mine: str, other: str, expected: str):
    assert launch(2, other_schedule_on_rank_1, mine, other) == [expected] * 2


def other_model_on_rank_1() -> tuple[str, str]:
    return _build(_plan(gpt2(0.0, layers=3 if dist.get_rank() else 4)))


def test_another_model_on_one_rank_is_an_error_on_all():
    told = launch(2, other_model_on_rank_1)
    assert [kind for kind, _ in told] == ["PlanMismatchError"] * 2


VERSIONS = [("torch", "2.9.1"), ("deepspeed", "0.20.0"), ("deepspeed", "0.19.2")]


def other_versions_on_rank_1() -> list[tuple[str, str]]:
    plan, told = _plan(gpt2(0.0)), []
    packages: dict[str, Any] = {"torch": torch, "deepspeed": deepspeed}
    for name, version in VERSIONS:
        package = packages[name]
        own = package.__version__
        if dist.get_rank() == 1:
            package.__version__ = version
        told.append(_build(plan))
        package.__version__ = own
    return told


def test_another_version_on_one_rank_is_an_error_on_all():
    first, second = launch(2, other_versions_on_rank_1)
    assert first == second
    for (kind, message), (name, version) in zip(first, VERSIONS, strict=True):
        assert kind == "RuntimeGuardError"
        assert "versions differ between ranks: ranks [0]: " in message
        before, _, after = message.partition("ranks [1]: ")
        assert f'"{name}": "{version}"' in after
        assert version not in before


def no_weights_on_rank_1() -> tuple[str, str]:
    with torch.device("meta" if dist.get_rank() else "cpu"):
        model = gpt2(0.0)
    return _build(_plan(model))


def test_a_model_without_weights_on_one_rank_is_an_error_on_all():
    told = launch(2, no_weights_on_rank_1)
    assert all(kind == "RuntimeGuardError" for kind, _ in told)
    assert all("meta" in message and "rank 1" in message for _, message in told)


def test_a_pipeline_needs_a_launcher(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeGuardError) as caught:
        _plan(gpt2(0.0)).pipeline_module()
    assert "torchrun" in caught.value.hint
