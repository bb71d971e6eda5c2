from __future__ import annotations

import torch
from torch import nn

from partitioner.capture import capture
from partitioner.cost import price, problem, resolve
from partitioner.graph import info
from tests.cost import models


def blocks_of(model, inputs):
    """Return the block name of every node ("" for none) by the node's id."""
    graph = capture(model, example_inputs=inputs, dtype=None)
    stated, found = problem(
        price(graph, profile=resolve("cpu")), stages=2, micro_batches=2
    )
    names = {
        info(node).id: stated.block_names[stated.units[unit].block]
        if stated.units[unit].block >= 0
        else ""
        for node, unit in found.unit_of.items()
    }
    return names, stated.block_names


def test_the_layers_of_a_decoder_are_its_blocks():
    found, names = blocks_of(*models.build("gpt2"))

    assert names == ("transformer.h.0@0", "transformer.h.1@0")
    for node, block in found.items():
        layer = node.split("@")[0].startswith("transformer.h.")
        assert block.startswith(node[: len("transformer.h.0")]) if layer else not block


def test_the_outermost_repeated_module_counts():
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([inner, nn.Sequential(nn.Linear(4, 4))])
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    found, names = blocks_of(Stack(), torch.randn(2, 4))

    assert names == ("layers.0@0", "layers.1@0")
    assert found["layers.0.0@0"] == found["layers.0.1@0"] == "layers.0@0"
    assert found["head@0"] == ""


def test_blocks_that_keep_batch_statistics_are_blocks_like_any_other():
    found, names = blocks_of(*models.build("resnet"))

    assert {"1@0", "2@0"} <= set(names)
    assert all(block for node, block in found.items() if node.startswith("1."))


def test_a_block_that_writes_a_buffer_by_a_function_is_a_block_too():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            self.get_buffer("calls").add_(1)
            return self.fc(x)

    model = nn.Sequential(Counting(), nn.Linear(4, 4))
    found, names = blocks_of(model, torch.randn(2, 4))

    assert names == ("0@0", "1@0")
    assert found["0.fc@0"] == "0@0"
