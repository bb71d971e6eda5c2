"""Weights that are read more than once under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.graph import ModelGraph
from partitioner.verify import Verification, verify
from tests.capture import toys
from tests.captured import BATCH, seeded, two_stages


class Casts(toys.Toy):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(self.times):
                x = torch.tanh(self.first(x))
        return self.second(x.float())


class Tied(Casts):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__(1)
        self.third = nn.Linear(6, 6, bias=False)
        self.third.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.third(self.first(x))
        return self.second(x.float())


def test_a_tied_weight_is_one_weight():
    graph = capture(seeded(Tied()), BATCH)
    (note,) = [text for text in graph.assumptions if text.startswith("autocast: ")]
    assert note.startswith("autocast: first.weight are read")


def recorded(times: int) -> tuple[ModelGraph, Verification]:
    graph = capture(seeded(Casts(times)), BATCH)
    return graph, verify(graph, two_stages(graph, "first"), [BATCH])


def test_a_weight_read_twice_under_autocast_is_noted_with_its_rounding():
    graph, found = recorded(4)
    (note,) = [text for text in graph.assumptions if text.startswith("autocast: ")]
    assert "first.weight, first.bias are read more than once" in note
    rounding = torch.finfo(torch.bfloat16).eps
    assert found.max_output_error == 0.0  # nothing but the sum of gradients differs
    assert 1e-5 < found.max_gradient_error < 2 * rounding
    assert found.per_parameter["second.weight"] == 0.0


def test_a_weight_read_once_is_the_same_to_the_last_bit():
    graph, found = recorded(1)
    assert not any(text.startswith("autocast: ") for text in graph.assumptions)
    assert found.max_gradient_error == 0.0
