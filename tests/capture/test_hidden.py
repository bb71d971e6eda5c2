"""Generators and counters that several calls share."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from tests.capture.test_recorder import check
from tests.capture.toys import Inside, Toy
from tests.captured import BATCH, seeded


class Noise(nn.Module):
    """Adds numbers from a generator that it is given."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generators = {"noise": generator}

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(6, generator=self.generators["noise"])


class Noisy(Toy):
    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        generators = [torch.Generator().manual_seed(1) for _ in range(2)]
        self.here = Noise(generators[0])
        self.there = Noise(generators[0 if shared else 1])
        self.third = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.there(self.second(self.here(self.first(x))))
        return self.third(torch.tanh(h))


@pytest.mark.parametrize("shared", [True, False])
def test_modules_that_draw_from_one_generator_stay_together(shared: bool):
    graph = check(Noisy(shared=shared))
    groups = [{node.name for node in group} for group in graph.groups]
    assert ({"here", "there"} in groups) is shared


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * self.n


class CountsTwice(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.third = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.counts(self.second(self.counts(self.first(x))))
        return self.third(torch.tanh(h))


def test_all_calls_of_a_leaf_that_counts_stay_together():
    graph = check(CountsTwice())
    (group,) = graph.groups
    assert {node.target for node in group} == {"counts"}
    assert len(group) == 2


def test_a_leaf_that_keeps_nothing_may_be_called_on_several_stages():
    class Reads(Toy):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) * self.second(x).mean().item()

    class Twice(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.reads = Reads()

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.reads(torch.tanh(self.reads(self.first(x)))))

    assert not capture(seeded(Twice()), BATCH).groups


class CopiesDeeply(Toy):
    """Copies values that no gradient flows to, alone and inside a container."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        kept = copy.deepcopy({"value": h.detach(), "more": [h.detach() * 2]})
        alone = copy.deepcopy(torch.tanh(h).detach())
        return self.second(h + kept["value"] * kept["more"][0] + alone)


@pytest.mark.filterwarnings("error")
def test_a_deep_copy_of_a_value_without_gradient_is_recorded_through():
    graph = check(Inside(CopiesDeeply()))
    assert not any("runs as a whole" in note for note in graph.assumptions)
