"""A stage of which nothing trains: the rest trains as in one process."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file

from partitioner.runtime.checkpoint.export import export
from partitioner.runtime.checkpoint.folders import CheckpointFolder
from tests.distributed.frozen_cases import CASES, CLIPPING, DUAL
from tests.distributed.frozen_stages import (
    Outcome,
    build,
    original,
    resume,
    train_all,
)
from tests.distributed.launch import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

BY_WORLD = {
    2: [name for name, case in CASES.items() if case.ranks == 2],
    3: [name for name, case in CASES.items() if case.ranks == 3],
    4: ["2, first", "2, last but its tie, bf16"],
}
RUNS = [(world, name) for world, names in BY_WORLD.items() for name in names]


@functools.cache
def trained(world: int) -> dict[str, list[Outcome]]:
    names = BY_WORLD[world]
    ranks = launch(world, train_all, names, timeout_s=250)
    return {name: [rank[index] for rank in ranks] for index, name in enumerate(names)}


def compare(ranks: list[Outcome], expected: Outcome, *, bf16: bool) -> None:
    # bfloat16 has 8 bits: compared with float32, an error of 2**-8 for each value.
    tolerance, state_tolerance = (2e-2, 3e-2) if bf16 else (1e-6, 2e-6)
    held = set()
    for outcome in ranks:
        count = len(outcome.losses)
        assert outcome.losses == pytest.approx(expected.losses[-count:], rel=tolerance)
        assert outcome.norms == pytest.approx(expected.norms[-count:], rel=tolerance)
        assert outcome.evaluated == pytest.approx(expected.evaluated, rel=tolerance)
        for name, value in outcome.state.items():
            difference = (value - expected.state[name]).abs().max().item()
            assert difference <= state_tolerance, name
            held.add(name)
    assert held == set(expected.state)


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_a_frozen_stage_leaves_the_others_what_they_are_in_one_process(world, name):
    case = CASES[name]
    ranks = trained(world)[name]
    compare(ranks, original(case, world // case.ranks), bf16="bf16" in name)
    if not case.tied:
        assert any(outcome.trains == 0 for outcome in ranks)


@functools.cache
def dual() -> list[list[Outcome]]:
    return launch(3, train_all, list(DUAL), timeout_s=250)


@pytest.mark.parametrize("name", DUAL)
def test_dual_pipe_on_three_ranks_with_nothing_frozen(name):
    index = list(DUAL).index(name)
    ranks = [outcomes[index] for outcomes in dual()]
    assert all(outcome.trains for outcome in ranks)
    compare(ranks, original(DUAL[name]), bf16="bf16" in name)


def test_the_limit_of_the_norm_is_reached():
    assert min(original(CASES["3, middle"]).norms) > 2 * CLIPPING


def test_a_checkpoint_of_a_frozen_stage_goes_on_elsewhere_and_is_exported(tmp_path):
    first = launch(3, resume, tmp_path, 3)
    later = launch(2, resume, tmp_path, 2)
    expected = original(CASES["3, middle"])
    compare(first, expected, bf16=False)
    compare(later, expected, bf16=False)
    assert len(later[0].losses) == 2
    export(CheckpointFolder(tmp_path, "frozen"), tmp_path / "out")
    model = build(CASES["3, middle"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    for name, parameter in model.named_parameters():
        same = torch.equal(parameter, before[name])
        assert same is not parameter.requires_grad, name
