"""Segments of one stage hand on memory that is theirs, for as long as it is needed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.cuda_graphs import CudaRecorder, Recorder, Replays
from partitioner.runtime.gradient_sums import GradientSums
from partitioner.runtime.segment import SegmentBody, SegmentProgram
from tests.runtime.cuda_graphs.call_again import CallAgain
from tests.runtime.cuda_graphs.stages import DEVICES, ROWS, WIDTH, inputs

pytestmark = pytest.mark.parametrize("device", DEVICES)


def segment(
    module: nn.Module, *, recomputed: bool = False, written_later: bool = False
) -> SegmentProgram:
    graph = fx.Graph()
    graph.output((graph.call_module("only", (graph.placeholder("value"),)),))
    body = SegmentBody(
        name=type(module).__name__,
        graph=graph,
        modules={"only": module},
        checkpointed=recomputed,
        written_later=frozenset({0} if written_later else ()),
    )
    return (CheckpointedSegment if recomputed else SegmentProgram)(body).train()


def replay(row: Sequence[SegmentProgram], device: str) -> Recorder:
    sums = GradientSums()

    def written() -> Iterator[Tensor]:
        for each in row:
            yield from sums.memory(each.parameters()).values()

    recorder: Recorder = CudaRecorder() if device == "cuda" else CallAgain(written)
    for each in row:
        each.replays = Replays(each, sums, recorder)
    return recorder


def batch(row: Sequence[SegmentProgram], device: str) -> list[Tensor]:
    """Run three micro-batches that are in flight together; return the gradients."""
    for each in row:
        if each.replays is not None:
            each.replays.begin_batch()
    made = []
    for number in range(3):
        (value,) = row[0].run(inputs(number, ROWS).to(device))
        # All that come after read one value, so that one may write it for the next.
        made.append(sum(each.run(value)[0] for each in row[1:]))
    for number, each in enumerate(made):
        each.backward(inputs(-number, ROWS).to(device))
    found = []
    for each in row:
        for weight in each.parameters():
            if weight.grad is not None:
                found.append(weight.grad.clone())
                weight.data.sub_(0.1 * weight.grad)
                weight.grad = None
    return found


def assert_equal_gradients(
    row: Sequence[SegmentProgram], device: str, *, replayed: int
) -> None:
    """Train the row as it is and replayed, where that many segments are."""
    plain, other = ([each.to(device) for each in copy.deepcopy(row)] for _ in range(2))
    replay(other, device)
    for _ in range(3):
        pairs = zip(batch(other, device), batch(plain, device), strict=True)
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
    counts = [each.replays.replayed for each in other if each.replays is not None]
    assert counts == [6] * replayed + [0] * (len(row) - replayed)


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(_nothing)
    return module


def _nothing(*_: object) -> None:
    pass


def test_what_a_frozen_segment_makes_is_kept_for_recomputation(device):
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    row = [segment(frozen), segment(nn.Linear(WIDTH, WIDTH), recomputed=True)]
    assert_equal_gradients(row, device, replayed=2)


def test_what_a_frozen_segment_makes_is_kept_for_others(device):
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    row = [segment(frozen), segment(hooked(nn.Linear(WIDTH, WIDTH)))]
    assert_equal_gradients(row, device, replayed=1)


class Detached(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


def test_what_is_detached_is_kept(device):
    row = [segment(nn.Linear(WIDTH, WIDTH)), segment(hooked(Detached(WIDTH, WIDTH)))]
    assert_equal_gradients(row, device, replayed=1)


def test_what_is_written_later_is_kept_for_recomputation(device):
    row = [
        segment(nn.Linear(WIDTH, WIDTH)),
        segment(nn.Linear(WIDTH, WIDTH), recomputed=True, written_later=True),
        segment(nn.ReLU(inplace=True)),
    ]
    assert_equal_gradients(row, device, replayed=2)


def test_one_recording_of_a_frozen_segment_serves_all(device, monkeypatch):
    frozen = segment(nn.Linear(WIDTH, WIDTH).requires_grad_(False))
    row = [frozen.to(device), segment(nn.Linear(WIDTH, WIDTH)).to(device)]
    recorder = replay(row, device)
    batch(row, device)
    recorded: list[str] = []
    record = recorder.record

    def told(function: Any, pool: Any) -> Any:
        recorded.append(function.__name__)
        return record(function, pool)

    monkeypatch.setattr(recorder, "record", told)
    batch(row, device)
    assert recorded == ["_forward"] * (1 + 3) + ["_backward"] * 3
