"""Calls of one module in a row have one order, whatever order the code chose."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.graph import ModelGraph, info
from tests.capture import toys
from tests.captured import BATCH, cut_everywhere, seeded

ORDERS = [("far", "near", "all"), ("all", "far", "near"), ("near", "all", "far")]


class Scale(nn.Module):
    """Has a weight for each kind, and one that all kinds share."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterDict({kind: torch.rand(6) for kind in ORDERS[0]})
        self.shared = nn.Parameter(torch.rand(6))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        scaled = self.norm(x * self.scales[kind]) + self.shared
        return scaled.sin(), scaled.cos()


class Noisy(Scale):
    def forward(self, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        return torch.rand_like(x), x * self.scales[kind]


class Writing(Scale):
    def forward(self, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        return x.mul_(self.scales[kind].detach()), x * 1.0


class ByKind(toys.Toy):
    """Goes through kinds in an order that is given, as a set gives one."""

    def __init__(self, order: tuple[str, ...], inner: type[Scale] = Scale) -> None:
        super().__init__()
        self.inner = inner()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        found = {kind: self.inner(h, kind) for kind in self.order}
        for kind in sorted(found):
            h = self.second(h * found[kind][0] + found[kind][1])
        return h


class Nested(nn.Module):
    """Goes through the kinds within each of its own calls."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = Scale()
        self.order = order

    def forward(self, x: Tensor, factor: float) -> Tensor:
        y = x * factor
        found = {kind: self.inner(y, kind)[0] for kind in self.order}
        return found["far"] - found["near"] * found["all"]


class InARow(toys.Toy):
    """Each call reads what the one before returned."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = Scale()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for kind in self.order:
            h, _ = self.inner(h, kind)
        return self.second(h)


class TwiceNested(nn.Module):
    """Its first module call is the run."""

    def __init__(self, order: tuple[str, ...], factors: tuple[float, ...]) -> None:
        super().__init__()
        self.nested = Nested(order)
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        found = {factor: self.nested(x, factor) for factor in self.factors}
        return found[0.5] * 3.0 + found[2.0]


def captured(order: tuple[str, ...], inner: type[Scale] = Scale, **given: Any) -> Any:
    return capture(seeded(ByKind(order, inner)), BATCH, **given)


def kinds(graph: ModelGraph) -> list[str]:
    """Return the kinds in the order in which their weights are read."""
    found = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    return [name.rpartition(".")[2] for name in found if ".scales." in name]


@pytest.mark.parametrize("order", ORDERS)
def test_the_graph_is_the_same_in_any_order(order: tuple[str, ...]):
    graph = captured(order)
    assert graph.describe() == captured(ORDERS[0]).describe()
    assert graph.fingerprint == captured(ORDERS[0]).fingerprint
    assert kinds(graph) == ["all", "far", "near"]
    calls = [span.call for span in graph.spans if span.path == "inner"]
    assert calls == [0, 1, 2]
    for span in graph.spans:
        assert {info(node).module for node in span.nodes} <= {span.path, "inner.norm"}


@pytest.mark.parametrize("order", ORDERS)
def test_leaves_and_cuts_follow(order: tuple[str, ...]):
    assert all(found.ok for found in cut_everywhere(captured(order)))
    leaves = [captured(given, leaf=["inner"]) for given in (order, ORDERS[0])]
    assert leaves[0].fingerprint == leaves[1].fingerprint
    assert all(found.ok for found in cut_everywhere(leaves[0]))


@pytest.mark.parametrize("inner", [Noisy, Writing])
def test_what_draws_or_writes_keeps_its_order(inner: type[Scale]):
    graph = captured(("far", "all", "near"), inner)
    assert kinds(graph) == ["far", "all", "near"]
    assert all(found.ok for found in cut_everywhere(graph))


class Pieces(toys.Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        made = [self.second(piece) for piece in h.split(1)]
        return torch.cat(made)


def test_pieces_keep_their_order():
    graph = capture(seeded(Pieces()), torch.rand(12, 6))
    calls = [n for n in graph.graph.nodes if str(n.target) == "second"]
    read = [call.all_input_nodes[0].args[1] for call in calls]
    assert read == list(range(12))
    assert all(found.ok for found in cut_everywhere(graph))


def test_calls_that_need_each_other_keep_their_order():
    graph = capture(seeded(InARow(("far", "all", "near"))), BATCH)
    assert kinds(graph) == ["far", "all", "near"]


def test_runs_within_runs():
    def built(order: tuple[str, ...], factors: tuple[float, ...]) -> ModelGraph:
        return capture(seeded(TwiceNested(order, factors)), BATCH)

    first = built(ORDERS[0], (0.5, 2.0))
    assert built(ORDERS[1], (2.0, 0.5)).describe() == first.describe()
    assert all(found.ok for found in cut_everywhere(built(ORDERS[1], (2.0, 0.5))))


SET = """
import torch
from partitioner.capture import capture
from tests.capture.test_siblings import ByKind, ORDERS
print(capture(ByKind(tuple(set(ORDERS[0]))), torch.zeros(3, 5, 6)).fingerprint)
"""


def test_processes_with_other_hash_seeds_find_one_graph():
    runs = [
        subprocess.run(
            [sys.executable, "-c", SET],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(4)
    ]
    assert len(runs[0].strip()) == 64
    assert len(set(runs)) == 1
