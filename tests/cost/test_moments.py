"""What backward holds for a moment: by unit, and before, in and after the layers."""

from __future__ import annotations

import torch
from torch import nn

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve

WIDTH, ROWS, CLASSES = 8, 4, 64
ACTIVATION = 4 * ROWS * WIDTH
WEIGHT = 4 * WIDTH * WIDTH


def linear_first():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Sigmoid())


def linear_last():
    return nn.Sequential(nn.Sigmoid(), nn.Linear(WIDTH, WIDTH, bias=False))


class Layered(nn.Module):
    def __init__(self, layer=linear_first) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()


def stated(model, dtype=torch.float32, checkpointing="none"):
    graph = capture(model, torch.randn(ROWS, WIDTH), dtype=dtype)
    costed = price(graph, profile=resolve("cpu"))
    found, _ = problem(costed, stages=1, micro_batches=1, checkpointing=checkpointing)
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


def test_in_bfloat16_gradients_come_where_a_layer_has_freed_its_end():
    _, units = stated(Layered(linear_last), torch.bfloat16)
    sigmoid, linear = units["layers.1.0"], units["layers.1.1"]
    assert linear.saved_bytes == 0  # what it reads is kept by the sigmoid
    assert sigmoid.beyond_bytes == (2 * ACTIVATION + WEIGHT) // 2
    # The gradient is larger than the sigmoid's result; recomputed, what the layer
    # reads goes, and that is as large.
    assert WEIGHT > ACTIVATION == 2 * sigmoid.saved_bytes
    for checkpointing in ("none", "all"):
        _, units = stated(Layered(linear_last), torch.bfloat16, checkpointing)
        parts = [units["layers.1.0"], units["layers.1.1"]]
        passing = sum(part.passing_bytes for part in parts)
        assert passing == (WEIGHT - ACTIVATION) // 2


def test_in_float32_gradients_are_added_up_at_once():
    found, _ = stated(Layered())
    assert not any(unit.passing_bytes for unit in found.units)


def test_a_model_without_layers_has_no_tail():
    found, _ = stated(nn.Linear(WIDTH, WIDTH))
    assert not any(unit.tail for unit in found.units)
