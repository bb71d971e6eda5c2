"""What is compiled together: repeated modules, and what lies between them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partitioner.verify
import partitioner.verify.run
from partitioner.capture import capture
from partitioner.emit import emit
from partitioner.graph import ModelGraph
from partitioner.runtime.compiled_blocks import BLOCK, compiled_blocks
from partitioner.runtime.segment import SegmentBody
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.captured import captured, two_stages
from tests.models import MODELS
from tests.placements import random_placement


def blocks_of(body: SegmentBody) -> list[set[str]]:
    """Return the modules and functions of each block."""
    found: dict[int, set[str]] = {}
    for node in body.graph.nodes:
        if BLOCK in node.meta:
            found.setdefault(node.meta[BLOCK], set()).add(str(node.target))
    return [found[number] for number in sorted(found)]


def test_each_layer_is_a_block_and_so_is_what_is_between():
    graph = captured("gpt2")
    first, second = emit(graph, two_stages(graph, "transformer.h.1@0")).layers
    embedding, *layers = blocks_of(first.body)
    assert "transformer.wte" in embedding
    assert layers == [{"transformer.h.0"}, {"transformer.h.1"}]
    *layers, head = blocks_of(second.body)
    assert layers == [{"transformer.h.2"}, {"transformer.h.3"}]
    assert "lm_head" in head


def test_a_part_of_a_layer_is_a_block():
    graph = captured("gpt2")
    _, second = emit(graph, two_stages(graph, "transformer.h.1.attn@0")).layers
    part, *_ = blocks_of(second.body)
    assert "transformer.h.1.mlp" in part
    assert not {name for name in part if "h.2" in name}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_module_around_layers_is_whole_unless_they_are_compiled(compiled: bool):
    graph = captured("t5")
    first, _ = emit(graph, two_stages(graph, "encoder"), compiled=compiled).layers
    whole = {str(node.target) for node in first.body.graph.find_nodes(op="call_module")}
    assert ("encoder" in whole) is not compiled
    assert ("encoder.block.0" in whole) is compiled


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_feeds_compiled_stages_and_others(name: str):
    graph = captured(name)
    placement = random_placement(graph, 2, random.Random(3))
    plain, compiled = emit(graph, placement), emit(graph, placement, compiled=True)
    assert (plain.first, plain.late) == (compiled.first, compiled.late)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify segments whose blocks run apart, as compiled ones do."""
    whole: Any = partitioner.verify.run._segment

    def segment(layer: Any) -> Any:
        made = whole(layer)
        made._function = compiled_blocks(made.graph, made.name, lambda each: each)
        return made

    monkeypatch.setattr(partitioner.verify.run, "_segment", segment)
    monkeypatch.setattr(partitioner.verify, "emit", partial(emit, compiled=True))


def check(graph: ModelGraph, seed: int) -> None:
    placement = random_placement(graph, 2, random.Random(seed))
    found = verify(graph, placement, input_tensors(graph, None))
    assert found.ok, str(found)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("name", MODELS)
def test_blocks_compute_what_the_model_computes(name: str):
    check(captured(name), seed=1)


class WritesAcross(nn.Module):
    """A layer writes in place to a view of what the layer before made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.scales = nn.ModuleList(Scale() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for scale in self.scales:
            scale(x[:, :2])
        for layer in self.layers[1:]:
            x = layer(x)
        return x


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(2))

    def forward(self, part: Tensor) -> Tensor:
        return part.mul_(self.by)


@pytest.mark.usefixtures("apart")
def test_what_is_written_in_place_is_compiled_with_what_shares_its_memory():
    torch.manual_seed(0)
    graph = capture(WritesAcross(), torch.randn(3, 4))
    placement = two_stages(graph, "layers.1")
    first, _ = emit(graph, placement, compiled=True).layers
    together, *_ = blocks_of(first.body)
    assert {"layers.0", "scales.0", "scales.1"} & together
    check(graph, seed=1)
