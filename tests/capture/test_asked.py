"""``h.requires_grad = True`` inside a forward: left out where nobody could tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from tests.capture import toys
from tests.capture.test_recorder import check, leaf_note
from tests.captured import BATCH


class Asks(toys.Toy):
    """Detaches, and asks for the gradient in train mode; ``then`` does the rest."""

    def forward(self, x: Tensor) -> Any:
        h = self.first(x).detach() * 2
        if self.training:
            h.requires_grad = True
        return self.then(h)

    def then(self, h: Tensor) -> Any:
        return self.second(h)


class ReturnsIt(Asks):
    def then(self, h: Tensor) -> Any:
        return h[:, :6] + 1


class ReadsIt(Asks):
    def then(self, h: Tensor) -> Any:
        return self.second(h * 3 if (h * 2).requires_grad else h)


class FreezesWhatReadsIt(Asks):
    def __init__(self) -> None:
        super().__init__()
        self.second.requires_grad_(False)


class Differentiates(Asks):
    """Hands the value to a module that computes gradients."""

    class Energy(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            if not h.requires_grad:
                return h * 2
            (slope,) = torch.autograd.grad((h**2).sum(), h)
            return slope

    def __init__(self) -> None:
        super().__init__()
        self.energy = self.Energy()

    def then(self, h: Tensor) -> Any:
        return self.second(self.energy(h))


class AsksOfInput(toys.Toy):
    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad = True
        return self.second(self.first(x))


def test_a_gradient_that_reaches_no_weight_is_left_out():
    graph = check(toys.Inside(Asks()))
    assert any("inner asks for the gradient" in note for note in graph.assumptions)
    assert [span for span in graph.spans if span.path == "inner"]


@pytest.mark.parametrize("toy", [ReturnsIt, ReadsIt, FreezesWhatReadsIt])
def test_where_somebody_could_tell_the_module_runs_as_a_whole(toy: type[nn.Module]):
    graph = check(toys.Inside(toy()))
    assert ".requires_grad is assigned" in leaf_note(graph, "inner")


def test_a_module_that_computes_gradients_is_not_given_the_value():
    graph = capture(toys.Inside(Differentiates()), BATCH)
    assert ".requires_grad is assigned" in leaf_note(graph, "inner")


def test_an_argument_of_the_model_is_not_the_forwards_own():
    class Between(toys.Inside):
        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.inner(x))

    graph = check(Between(AsksOfInput()))
    assert ".requires_grad is assigned" in leaf_note(graph, "inner")
