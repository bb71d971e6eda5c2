"""Engines, optimizers and parameter groups train like the original in one process."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.distributed import engines
from tests.distributed.engines import ENGINES, Outcome, train_original, train_stages
from tests.distributed.launch import launch
from tests.distributed.tied_model import MICRO_BATCHES, micro_batches

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

BY_WORLD = {
    2: [name for name, case in ENGINES.items() if case.stages == 2],
    4: ["fp32-zero-clip", "dual-zero-clip", "dynamic-4", "eager-4"],
}
CASES = [(world, name) for world, names in BY_WORLD.items() for name in names]


@functools.cache
def trained(world: int) -> dict[str, list[Outcome]]:
    """Train under all engines of a world size, once, in one process group."""
    names = BY_WORLD[world]
    ranks = launch(world, train_stages, names, timeout_s=250)
    return {name: [rank[index] for rank in ranks] for index, name in enumerate(names)}


@functools.cache
def original(replicas: int, name: str) -> Outcome:
    return train_original(replicas, ENGINES[name])


@pytest.mark.parametrize(("world", "name"), CASES)
def test_losses_norms_and_parameters_are_the_originals(world, name):
    expected = original(world // ENGINES[name].stages, name)
    # bfloat16 has 8 bits: compared with float32, an error of 2**-8 for each value.
    bf16 = name.startswith("bf16")
    tolerance, state_tolerance = (2e-2, 3e-2) if bf16 else (1e-6, 2e-6)
    held = set()
    for outcome in trained(world)[name]:
        assert outcome.losses == pytest.approx(expected.losses, rel=tolerance)
        if any(outcome.norms):  # in plain fp32 DeepSpeed does not say
            assert outcome.norms == pytest.approx(expected.norms, rel=tolerance)
        assert outcome.evaluated == pytest.approx(expected.evaluated, rel=tolerance)
        for key, value in outcome.state.items():
            difference = (value - expected.state[key]).abs().max().item()
            assert difference <= state_tolerance, key
            held.add(key)
    assert held == set(expected.state)
    if "clip" in name:
        assert min(expected.norms) > 2 * engines.CLIPPING


GRAPHS = [(world, name) for world, name in CASES if ENGINES[name].graphs]


@pytest.mark.parametrize(("world", "name"), GRAPHS)
def test_all_batches_but_the_first_are_replayed(world, name):
    for rank, outcome in enumerate(trained(world)[name]):
        assert outcome.replayed, rank
        for replayed in outcome.replayed:
            assert replayed == (len(outcome.losses) - 1) * MICRO_BATCHES


@pytest.mark.parametrize(("world", "name"), CASES)
def test_every_rank_has_all_groups_in_order(world, name):
    for outcome in trained(world)[name]:
        rates = [(lr, decay) for _, lr, decay in outcome.groups]
        assert rates == [(1e-2, 0.0), (3e-3, 0.1), (1e-2, 0.1)]
        assert all(tensors for tensors, *_ in outcome.groups)


RELEASED = [
    (world, name)
    for world, name in CASES
    # DeepSpeed's hooks for gradients that go to the host keep its optimizer.
    if not ENGINES[name].plain and "offload" not in name
]


@pytest.mark.parametrize(("world", "name"), RELEASED)
def test_an_engine_that_was_destroyed_is_gone(world, name):
    assert [outcome.released for outcome in trained(world)[name]] == [True] * world


def test_one_group_is_a_placeholder_on_a_stage():
    """Or the test above would not test one."""
    first, last = trained(2)["fp32-clip"]
    assert engines.SPECIAL in first.state
    assert engines.SPECIAL not in last.state
    assert last.groups[1][0] == 1


@functools.cache
def errors() -> list[tuple[list[str], tuple[list[float], str], list[str]]]:
    return launch(2, refused, timeout_s=200)


def refused() -> tuple[list[str], tuple[list[float], str], list[str]]:
    return engines.refusals(), engines.change_shapes(), engines.unreplayed()


def test_a_plan_for_cuda_graphs_says_once_that_there_are_none():
    (*_, first), (*_, last) = errors()
    (told,) = first
    assert "plan.initialize(cuda_graphs=True)" in told
    assert last == []


def test_another_shape_must_be_announced():
    (_, (losses, message), _), (_, (_, silent), _) = errors()
    short, long = (micro_batches(0, (length,))[0] for length in (5, 7))
    expected = engines.train_on([[short, long, long]]).losses
    assert losses == pytest.approx(expected, rel=1e-6)
    assert "(3, 9)" in message
    assert "the input 'ids'" in message
    assert "(3, 7)" in message
    assert "dynamic_shape=True" in message
    assert not silent


def test_what_cannot_be_is_refused_on_every_rank():
    for told, *_ in errors():
        dynamic, few, mixed, groups, bubble, shapes, *graphs = told
        assert "dynamic_shape=True" in dynamic
        assert "2 micro-batches; DualPipeV on 2 ranks needs 4" in few
        assert "differ in shape" in mixed
        assert "1, 2 parameter groups" in groups
        assert "groups=" in groups
        assert "zero_bubble=True with eager-1f1b" in bubble
        assert "dynamic_shape=True: under eager-1f1b" in shapes
        for message in graphs[:2]:
            assert "cuda_graphs=True with zero_bubble or check_finite" in message
        assert "DeepSpeedZeroOptimizer: it takes the gradients" in graphs[2]
        assert ("run on cpu" in graphs[3]) is not torch.cuda.is_available()
