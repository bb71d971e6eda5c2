"""What no boundary can carry is named with its line, before anything runs."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, fx, nn

from partitioner.capture import capture
from partitioner.emit import Placement, emit
from partitioner.errors import EmitError
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors


class Quantizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        packed = torch.quantize_per_tensor(h.detach(), 0.1, 3, torch.quint8)
        packed = packed.reshape(-1, 6)
        return self.second(h) + packed.dequantize()


def cut_after(graph: ModelGraph, node: fx.Node) -> Placement:
    computing = [n for n in graph.graph.nodes if info(n).kind == "compute"]
    place = computing.index(node)
    stage_of = {n: int(i > place) for i, n in enumerate(computing)}
    return Placement(stages=2, stage_of=stage_of, block_of={})


# torch says that quantized tensors will go, some day.
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_a_quantized_value_is_named_with_its_line():
    torch.manual_seed(0)
    graph = capture(Quantizes(), torch.randn(4, 6))
    lines, first = inspect.getsourcelines(Quantizes.forward)
    line = first + next(i for i, text in enumerate(lines) if "reshape" in text)
    refused = {}
    for node in [n for n in graph.graph.nodes if info(n).kind == "compute"][:-1]:
        placement = cut_after(graph, node)
        try:
            emit(graph, placement)
        except EmitError as error:
            refused[node.name] = str(error)
        else:
            assert verify(graph, placement, input_tensors(graph, None)).ok, node
    assert "first" not in refused
    assert len(refused) in (2, 3)  # after quantizing, after reshaping, after `second`
    assert f"test_lint.py:{line}) leaves stage 0" in refused["reshape"]
    assert "a quantized tensor" in refused["reshape"]
    assert "dequantize" not in refused
