"""Gradients come back through what an output depends on, and through nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partitioner.capture import capture
from partitioner.emit import emit
from partitioner.emit.gradients import GradientFlow
from partitioner.graph import ModelGraph, info
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded, two_stages


class Unread(toys.Toy):
    """Writes over what the producer of an unread value has saved."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        unread = torch.sigmoid(h * h)
        h.add_(1.0)
        return self.second(h) + torch.tanh(unread).detach()


class WritesLater(toys.Toy):
    """What the output depends on is read before it is written for a dead branch."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        kept = h * 2.0
        h.tanh_()
        unread = h * 3.0
        h.add_(1.0)
        return self.second(kept) + 0.0 * torch.ones_like(unread)


class WritesPart(toys.Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        copy = torch.zeros_like(x)
        copy[:, 0] = h[:, -1]
        return self.second(copy)


class Differentiates(torch.nn.Module):
    """A leaf that needs its argument's graph and hands on no gradient."""

    def forward(self, h: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(torch.tanh(h).sum(), h, retain_graph=True)
        return slope.detach()


class AsksInside(toys.Toy):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Differentiates()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) + self.inner(self.first(x))


class ReadsValue(torch.nn.Module):
    """A leaf that hands on no gradient, and that computes none."""

    def forward(self, h: Tensor) -> Tensor:
        return torch.zeros_like(h) + float(h.sum().item() > 0)


class WritesUnread(toys.Toy):
    """Writes over what ``tanh`` has saved; no output depends on what is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ReadsValue()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        unread = torch.tanh(h * h)
        copy = unread * 2.0
        unread.add_(1.0)
        return self.second(h) + self.inner(copy)


def reached(graph: ModelGraph) -> set[str]:
    """Return the values that get a gradient from any reader."""
    flow = GradientFlow(graph)
    nodes = [node for node in graph.graph.nodes if node.op != "output"]
    return {info(node).id for node in nodes if flow.comes_back(node, 0, {})}


def test_what_no_output_depends_on_crosses_without_a_gradient():
    graph = capture(seeded(Unread()), BATCH)
    assert "@0:1" not in reached(graph)  # the sigmoid
    layers = emit(graph, two_stages(graph, "@0:2"))
    (spec,) = [layer.send for layer in layers.layers if layer.send is not None]
    found = {value.name: value for value in spec.values}
    assert found["sigmoid"].drops_gradient
    assert not found["sigmoid"].differentiable
    assert all(found.ok for found in cut_everywhere(graph))


def test_a_leaf_that_computes_no_gradient_asks_for_none():
    graph = capture(seeded(WritesUnread()), BATCH)
    assert [
        node.target for node in graph.graph.nodes if info(node).differentiates
    ] == []
    assert not reached(graph) & {"@0:1", "@0:2"}  # the tanh and its copy
    assert all(found.ok for found in cut_everywhere(graph))


def test_only_writes_before_a_read_count():
    graph = capture(seeded(WritesLater()), BATCH)
    found = reached(graph)
    assert "first@0" in found
    assert "@0:1" not in found  # the tanh, written after the output's read
    assert all(result.ok for result in cut_everywhere(graph))


def test_a_value_gets_a_gradient_only_from_readers_behind_the_boundary():
    graph = capture(seeded(WritesLater()), BATCH)
    by_id = {info(node).id: node for node in graph.graph.nodes if "info" in node.meta}
    first, kept = by_id["first@0"], by_id["@0:0"]
    flow = GradientFlow(graph)
    assert flow.comes_back(first, 0, {kept: 1})
    assert not flow.comes_back(first, 1, {kept: 1})


@pytest.mark.parametrize("toy", [WritesPart, AsksInside])
def test_writes_without_a_result_and_leaves_count(toy: type[toys.Toy]):
    graph = capture(seeded(toy()), BATCH)
    assert "first@0" in reached(graph)
    assert verify(graph, two_stages(graph, "first@0"), input_tensors(graph, None)).ok


def test_a_write_to_what_requires_no_gradient_gives_it_none():
    class WritesInput(toys.Toy):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.mul_(2.0), self.second(self.first(x))

    graph = capture(seeded(WritesInput()), BATCH)
    assert "@0:0" not in reached(graph)
    assert all(found.ok for found in cut_everywhere(graph))
