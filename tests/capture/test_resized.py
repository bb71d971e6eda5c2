"""Eval mode is recorded at other sizes: a difference is the mode's or the sizes'."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.session import Session
from partitioner.capture.sizes import candidates
from partitioner.graph import ModelGraph
from tests.captured import rerun, seeded

IDS = torch.arange(32).reshape(4, 8) % 10
ROWS, LENGTH = IDS.shape


class Scaled(nn.Module):
    """Multiplies by a number, which each class below computes in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(10, 6)
        self.second = nn.Linear(6, 6)

    def factor(self, x: Tensor) -> float:
        return 2

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.factor(x))


class ByMode(Scaled):
    def factor(self, x: Tensor) -> float:
        return 2.0 if self.training else 0.5


class Rows(Scaled):
    def factor(self, x: Tensor) -> float:
        return x.shape[0]


class RowsInEval(Scaled):
    def factor(self, x: Tensor) -> float:
        return ROWS if self.training else x.shape[0]


class LengthOrItsDouble(Scaled):
    def factor(self, x: Tensor) -> float:
        return x.shape[1] if self.training else 2 * LENGTH


class HalvedWhenLarge(Scaled):
    def factor(self, x: Tensor) -> float:
        return 0.5 if x.shape[0] > ROWS + 1 else 1.0


class OtherCodeInEval(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()
        self.turn = Turn()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.second(self.turn(self.inner(x)))


class Turn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() if self.training else x.relu()


@pytest.fixture
def recordings(monkeypatch):
    """The modes in which a model was recorded, in order."""
    modes: list[bool] = []
    once = Session._once

    def counted(self, *, training, shapes):
        modes.append(training)
        return once(self, training=training, shapes=shapes)

    monkeypatch.setattr(Session, "_once", counted)
    return modes


def by_mode(graph: ModelGraph) -> bool:
    return any(node.name.startswith("by_mode") for node in graph.graph.nodes)


def fixed(graph: ModelGraph) -> list[int]:
    """The dimensions of the input that may not vary."""
    return [dim for dim, symbol in enumerate(graph.inputs[0].symbols) if symbol < 0]


def check(graph: ModelGraph, *shapes: tuple[int, int]) -> None:
    """The recorded graph gives what the model gives, in both modes."""
    for shape in ((ROWS, LENGTH), *shapes):
        x = torch.arange(shape[0] * shape[1]).reshape(shape) % 10
        for training in (True, False):
            graph.model.train(training)
            assert torch.equal(rerun(graph, graph.model, [x]), graph.model(x))


@pytest.mark.parametrize("toy", [Scaled, Rows])
def test_modes_that_are_equal_need_four_recordings(toy, recordings):
    graph = capture(seeded(toy()), IDS)
    # The example; eval mode with both sizes changed; each size.
    assert recordings == [True, False, True, True]
    assert not by_mode(graph)
    assert fixed(graph) == []
    check(graph, (7, 3))


def test_what_differs_by_mode_is_not_taken_for_a_size(recordings):
    graph = capture(seeded(ByMode()), IDS)
    assert recordings == [True, False, True, True, False]
    assert by_mode(graph)
    assert fixed(graph) == []
    check(graph, (7, 3))


def test_what_differs_by_size_is_not_taken_for_a_mode():
    graph = capture(seeded(HalvedWhenLarge()), IDS)
    assert not by_mode(graph)
    assert fixed(graph)
    check(graph)


def test_what_follows_a_size_in_eval_mode_only_is_no_constant():
    graph = capture(seeded(RowsInEval()), IDS)
    assert fixed(graph)
    check(graph)


def test_a_constant_of_eval_mode_is_no_size():
    """Even if it is the size at which train mode is checked."""
    graph = capture(seeded(LengthOrItsDouble()), IDS)
    assert candidates(graph.inputs)[1].larger == 2 * LENGTH
    assert by_mode(graph)
    check(graph, (4, 2 * LENGTH), (4, 5))


def test_operations_that_differ_by_mode_make_a_leaf_as_before(recordings):
    graph = capture(seeded(OtherCodeInEval()), IDS)
    assert [n.target for n in graph.graph.nodes if n.op == "call_module"].count("turn")
    assert any("train and eval mode differ" in note for note in graph.assumptions)
    assert fixed(graph) == []
    check(graph, (7, 3))
