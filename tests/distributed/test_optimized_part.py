"""Weights that need gradients, and that the optimizer was not given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partitioner import partition
from tests.distributed.engines import QUIET, stand_in
from tests.distributed.launch import launch
from tests.distributed.tied_model import loss_of, make_model, micro_batches

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(200)]


def half_of_them(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters[1::2], lr=0.1)


def replay() -> list[tuple[list[float], list[int]]]:
    """Return losses, and how often each segment was replayed: as it is, and so."""
    return [_trained(1, replayed=replayed) for replayed in (False, True)]


def put_off() -> list[tuple[list[float], list[int]]]:
    """Return losses as it is, and with weight gradients put off."""
    return [_trained(2, zero_bubble=wanted) for wanted in (False, True)]


def _trained(
    stages: int, *, replayed: bool = False, zero_bubble: bool = False
) -> tuple[list[float], list[int]]:
    plan = partition(
        make_model(),
        stages,
        example_inputs=torch.zeros(3, 5, dtype=torch.int64),
        micro_batches=4,
        dtype="bfloat16",
        device="cpu",
    )
    engine, *_ = plan.initialize(
        loss_of, optimizer=half_of_them, config=QUIET, zero_bubble=zero_bubble
    )
    if replayed:
        engine.start_cuda_graphs(engine.sums, recorder=stand_in(engine))
    losses = [engine.train_batch(iter(batch)).item() for batch in micro_batches(0)]
    replays = [segment.replays for segment in engine.module.segments()]
    return losses, [each.replayed for each in replays if each is not None]


def test_the_others_may_be_in_a_cuda_graph():
    ((plain, _), (losses, counts)) = launch(1, replay)[0]
    assert losses == plain
    assert counts == [4 * (len(losses) - 1)]


def test_the_others_may_be_put_off():
    for (plain, _), (losses, _) in launch(2, put_off):
        assert losses == pytest.approx(plain, rel=1e-2)  # bfloat16 in another order
