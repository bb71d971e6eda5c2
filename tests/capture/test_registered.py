"""Modules that a forward calls with other weights than the registered ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.errors import DataDependentError
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded


class Stateless(toys.Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        weights = {"weight": self.second.weight * self.first.bias}
        return self.second(torch.func.functional_call(self.second, weights, (h,)))


class Swaps(toys.Toy):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.second._parameters.pop("weight")
        assert weight is not None
        scaled: Any = weight * self.first.bias
        self.second.weight = scaled
        y = self.second(self.first(x))
        del self.second.weight
        self.second.register_parameter("weight", weight)
        return self.first(y)


class Borrows(toys.Toy):
    """Puts one layer's parameter into the other."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.second._parameters["weight"]
        self.second._parameters["weight"] = self.first._parameters["weight"]
        y = self.second(self.first(x))
        self.second._parameters["weight"] = weight
        return self.second(y)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale) * self.scale


class StatelessSpan(toys.Toy):
    """What it calls with another weight is recorded through."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scale()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        weights = {"scale": self.inner.scale * self.first.bias}
        h = torch.func.functional_call(self.inner, weights, (h,))
        return self.second(self.inner(h))


@pytest.mark.parametrize("toy", [Stateless, Swaps, Borrows])
def test_who_calls_a_module_with_other_weights_runs_as_a_whole(toy: type[nn.Module]):
    graph = capture(seeded(toys.Inside(toy())), BATCH)
    (note,) = [text for text in graph.assumptions if "runs as a whole" in text]
    assert note.startswith("inner runs as a whole: it calls inner.second with another")
    assert all(verification.ok for verification in cut_everywhere(graph))
    with pytest.raises(DataDependentError, match="with another tensor as its weight"):
        capture(toy(), BATCH)


def test_a_recorded_module_with_other_weights_is_not_called_whole():
    graph = capture(seeded(StatelessSpan()), BATCH)
    swapped, plain = [span for span in graph.spans if span.path == "inner"]
    assert "another tensor as its scale" in swapped.opened_because
    assert plain.opened_because == ""
    assert all(verification.ok for verification in cut_everywhere(graph))


def test_a_leaf_may_replace_its_own_buffers_at_every_call():
    class Replaces(nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            y = x + self.last
            self.last = x.detach().mean(0)
            return y

    class Twice(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Replaces()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.second(self.inner(self.first(x))))

    graph = capture(seeded(Twice()), BATCH)
    (note,) = [text for text in graph.assumptions if "runs as a whole" in text]
    assert note.startswith("inner runs as a whole: it replaces its buffer")
