"""Recomputation from what the forward began with, as often as torch asks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment, SegmentBody


class Draws(nn.Module):
    """Draws from generators of its own and from Python's."""

    generator: torch.Generator

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)
        self.plain = random.Random(1)
        self.numpy: list[Any] = [np.random.default_rng(1), np.random.RandomState(1)]

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=self.generator)
        own = self.plain.random() + sum(each.uniform() for each in self.numpy)
        return x * (noise + own + random.random())


class Counts(nn.Module):
    """A buffer that is written before gradients are computed, and again after."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps.clone()


class Tallies(nn.Module):
    """Python numbers: on the class at first, in a list, in a dict, and a new list."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen = [1]
        self.table = {"n": 1}
        self.again = [2]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.table["n"] += 1
        self.again = [*self.again, 3]
        return x * (self.calls + len(self.seen) + self.table["n"] + len(self.again))


class Force(nn.Module):
    """Hands on its energy's gradient, which is differentiated once more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            place = x if x.requires_grad else x.detach().requires_grad_()
            energy = torch.tanh(self.linear(place)).pow(2).sum()
            (force,) = torch.autograd.grad(energy, place, create_graph=True)
        return x + force


def parts() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "first": nn.Linear(4, 4),
        "norm": nn.BatchNorm1d(4),
        "drop": nn.Dropout(0.5),
        "draws": Draws(),
        "counts": Counts(),
        "tallies": Tallies(),
        "force": Force(),
        "counts_again": Counts(),
        "tallies_again": Tallies(),
        "force_again": Force(),
    }


def train(kind: type[Segment], modules: dict[str, nn.Module]) -> dict[str, Any]:
    graph = fx.Graph()
    value = graph.placeholder("value")
    for path in modules:
        value = graph.call_module(path, (value,))
    graph.output((value,))
    segment = kind(SegmentBody(name="chain", graph=graph, modules=modules))
    torch.manual_seed(3)
    random.seed(3)
    outputs = []
    for step in range(2):
        x = torch.linspace(-1, 1, 12).reshape(3, 4) + step
        _, out = segment((torch.zeros(()), x))
        out.sum().backward()
        outputs.append(out.detach())
    state = dict(segment.named_buffers())
    gradients = {name: value.grad for name, value in segment.named_parameters()}
    draws = {"next": torch.rand(()), "host": torch.tensor(random.random())}
    named = {f"output {n}": output for n, output in enumerate(outputs)}
    tallies: Any = modules["tallies"]
    counted = [tallies.calls, sum(tallies.seen), tallies.table["n"], len(tallies.again)]
    draws["tallies"] = torch.tensor(counted)
    return {**state, **gradients, **draws, **named}


@pytest.mark.parametrize("last", ["force", "force_again"])
def test_gradients_inside_a_forward_are_those_of_the_plain_segment(last: str):
    names = list(parts())
    kept = names[: names.index(last) + 1]
    plain, again = (
        train(kind, {name: parts()[name] for name in kept})
        for kind in (Segment, CheckpointedSegment)
    )
    assert plain.keys() == again.keys()
    for name, value in plain.items():
        assert value is not None, name
        torch.testing.assert_close(again[name], value, msg=name)
