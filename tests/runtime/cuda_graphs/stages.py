"""A segment, and what DeepSpeed's engine does with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.cuda_graphs import CudaRecorder, Replays
from partitioner.runtime.gradient_sums import GradientSums
from partitioner.runtime.segment import SegmentBody, SegmentProgram
from tests.runtime.cuda_graphs.call_again import CallAgain

__all__ = [
    "DEVICES",
    "ROWS",
    "WIDTH",
    "Stage",
    "assert_equal",
    "counted",
    "inputs",
    "run",
    "two",
]

WIDTH, ROWS = 8, 6
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    ),
]


class Block(nn.Module):
    """Normalisation with statistics, dropout, and a weight that is used twice."""

    def __init__(self, dropout: float = 0.25) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.dropout(self.norm(torch.tanh(self.one(x)))))


def program(modules: dict[str, nn.Module], device: str, **body: Any) -> SegmentProgram:
    """Return modules in a row; also returned: what goes in, and a number."""
    graph = fx.Graph()
    first = value = graph.placeholder("value")
    scale = graph.placeholder("scale")
    for path in modules:
        value = graph.call_module(path, (value,))
    graph.output((graph.call_function(torch.mul, (value, scale)), first, scale))
    kind = CheckpointedSegment if body.get("checkpointed") else SegmentProgram
    made = kind(SegmentBody(name="replayed", graph=graph, modules=modules, **body))
    return made.to(device).train()


class Stage:
    """A segment and what DeepSpeed's engine does with it."""

    def __init__(self, segment: SegmentProgram, device: str, *, replayed: bool) -> None:
        self.segment = segment
        self.sums = GradientSums()
        self.device = device
        self.in_flight: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen: list[Tensor] = []
        if replayed:
            recorder = CudaRecorder() if device == "cuda" else CallAgain(self.written)
            segment.replays = Replays(segment, self.sums, recorder)
            self.recorder = recorder

    def written(self) -> Iterator[Tensor]:
        yield from self.segment.buffers()
        yield from self.sums.memory(self.segment.parameters()).values()

    @property
    def replayed(self) -> int:
        assert self.segment.replays is not None
        return self.segment.replays.replayed

    @property
    def why_not(self) -> str:
        assert self.segment.replays is not None
        return self.segment.replays.why_not

    def forward(self, number: int, *, rows: int = ROWS, needs: bool = True) -> None:
        x = inputs(number, rows).to(self.device).requires_grad_(needs)
        made, passed, scale = self.segment.run(x * 1, 2.0)
        assert scale == 2.0
        assert passed.shape == x.shape
        self.seen.append(made.detach().clone())
        self.in_flight[number] = (x, made + passed)

    def backward(self, number: int) -> None:
        x, made = self.in_flight.pop(number)
        made.backward(inputs(-number, len(made)).to(self.device))
        if x.grad is not None:
            self.seen.append(x.grad)

    def batch(self, order: str, **options: Any) -> None:
        """Run passes, ``F0 F1 B0 B1``, and a step of gradient descent."""
        if self.segment.replays is not None:
            self.segment.replays.begin_batch()
        for each in order.split():
            number = int(each[1:])
            if each[0] == "F":
                self.forward(number, **options)
            else:
                self.backward(number)
        with torch.no_grad():
            for weight in self.segment.parameters():
                if weight.grad is not None:
                    self.seen.append(weight.grad.clone())
                    weight.sub_(0.1 * weight.grad)
                weight.grad = None


def inputs(number: int, rows: int) -> Tensor:
    return torch.randn(
        rows, WIDTH, generator=torch.Generator().manual_seed(1000 + number)
    )


def two(
    device: str, modules: dict[str, nn.Module] | None = None, **body: Any
) -> tuple[Stage, Stage]:
    """Return a stage as it is, and an equal one that is replayed."""
    torch.manual_seed(0)
    modules = modules or {"blocks.0": Block(), "blocks.1": Block()}
    plain = Stage(
        program(copy.deepcopy(modules), device, **body), device, replayed=False
    )
    return plain, Stage(program(modules, device, **body), device, replayed=True)


def assert_equal(plain: Stage, replayed: Stage) -> None:
    for found, expected in zip(replayed.seen, plain.seen, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    states = zip(
        replayed.segment.state_dict().items(),
        plain.segment.state_dict().items(),
        strict=True,
    )
    for (name, found), (_, expected) in states:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)


def run(stage: Stage, orders: list[str], **options: Any) -> None:
    torch.manual_seed(7)
    for order in orders:
        stage.batch(order, **options)


def counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the name of each function that is recorded."""
    recorded: list[str] = []
    record = stage.recorder.record

    def told(function: Any, pool: Any) -> Any:
        recorded.append(function.__name__)
        return record(function, pool)

    monkeypatch.setattr(stage.recorder, "record", told)
    return recorded
