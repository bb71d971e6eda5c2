"""Bytes that weight gradients wait with, counted by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.cost.put_off import put_off_bytes
from partitioner.graph import info

ROWS, WIDTH = 6, 4
ONE = ROWS * WIDTH * 4
"""Bytes of an activation."""


def counted(model: nn.Module, x: Tensor | None = None) -> int:
    graph = capture(model, torch.zeros(ROWS, WIDTH) if x is None else x)
    return put_off_bytes(graph, list(graph.graph.nodes))


class Shared(nn.Module):
    """Two layers read one tensor; the first layer's input gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.left(x) + self.right(x)


def test_what_two_layers_are_given_counts_once():
    assert counted(Shared()) == ONE + 2 * ONE


def test_a_frozen_layer_puts_nothing_off():
    model = Shared()
    model.left.requires_grad_(False)
    assert counted(model) == ONE + ONE


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.matrix = nn.Parameter(torch.ones(WIDTH, WIDTH))
        self.offset = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.offset, self.first(x), self.matrix)


def test_a_function_of_a_parameter_keeps_its_result_as_well():
    assert counted(Products()) == ONE + 2 * ONE


def test_a_convolution_keeps_its_result_as_well():
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.Conv1d(3, 5, 1), nn.Tanh())
    given, made = 6 * 3 * 7 * 4, 6 * 5 * 7 * 4
    assert counted(model, torch.zeros(6, 2, 7)) == given + 2 * made


def test_other_layers_put_nothing_off():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    assert counted(model) == 0


class Sentence(nn.Module):
    """Reads ids, and has a layer behind its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.words(ids))


def test_a_module_that_runs_whole_keeps_all_that_it_saves():
    ids = torch.zeros(ROWS, dtype=torch.int64)
    graph = capture(nn.Sequential(Sentence(), nn.Tanh()), ids, leaf=["0"])
    (leaf,) = (node for node in graph.graph.nodes if node.target == "0")
    saved = sum(dict(info(leaf).saved).values())
    assert put_off_bytes(graph, [leaf]) == saved + 2 * ONE
    assert saved >= ONE
