"""What backward holds for a moment: by unit, and before, in and after the layers."""

from __future__ import annotations

import torch
from torch import nn

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve

WIDTH, ROWS, CLASSES = 8, 4, 64
ACTIVATION = 4 * ROWS * WIDTH
WEIGHT = 4 * WIDTH * WIDTH


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid())
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()


def stated(model):
    graph = capture(model, torch.randn(ROWS, WIDTH), dtype=torch.float32)
    costed = price(graph, profile=resolve("cpu"))
    found, _ = problem(costed, stages=1, micro_batches=1)
    return found, {unit.name.partition("@")[0]: unit for unit in found.units}


def test_the_tail_is_what_runs_after_the_last_layer():
    found, units = stated(Layered())
    assert units["head"].tail
    assert not units["first"].tail
    assert not any(unit.tail for unit in found.units if unit.block >= 0)
    # The gradients of its result, its argument and its weight, all of it.
    gradients = 4 * ROWS * CLASSES + ACTIVATION + 4 * WIDTH * CLASSES
    assert units["head"].transient_bytes == gradients


def test_in_a_layer_gradients_of_weights_count_but_not_before():
    found, units = stated(Layered())
    assert found.reserved_bytes == 2 * ACTIVATION + WEIGHT
    assert units["first"].transient_bytes == 0  # the gradients of its result alone


def test_a_recomputed_layer_has_freed_its_end_when_its_beginning_runs():
    _, units = stated(Layered())
    linear, sigmoid = units["layers.0.0"], units["layers.0.1"]
    assert sigmoid.saved_bytes == ACTIVATION
    assert sigmoid.beyond_bytes == 2 * ACTIVATION
    assert linear.beyond_bytes == 2 * ACTIVATION + WEIGHT - ACTIVATION


def test_a_model_without_layers_has_no_tail():
    found, _ = stated(nn.Linear(WIDTH, WIDTH))
    assert not any(unit.tail for unit in found.units)
