"""The model as a list of whole layers, as a pipeline without a compiler has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx

from partitioner.cost.weights import read_weights
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.cost import Units
    from partitioner.cost.weights import Weight
    from partitioner.costed import CostedGraph
    from partitioner.solve import Problem

__all__ = ["Layer", "whole_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Units that a list of layers would keep together."""

    units: tuple[int, ...]
    repeated: bool
    """Whether it is an element of a list of modules (a block)."""
    parameters: int
    """Elements of its trainable parameters; a tied one counts in every layer."""
    flops: int
    """Forward and backward of one micro-batch."""


def whole_layers(
    costed: CostedGraph, problem: Problem, units: Units
) -> tuple[Layer, ...]:
    """Return the layers in an order in which any cut between two is legal.

    A layer is a block (an element of an ``nn.ModuleList`` or ``nn.Sequential``), or an
    outermost module with parameters that holds no block; what is neither goes with the
    layer that runs next. Layers that need each other's results both ways are one.
    """
    weights = _trainable(costed, units)
    labels = _labels(problem, units, weights)
    order = nx.DiGraph()
    order.add_nodes_from(labels)
    order.add_edges_from(
        (labels[before], labels[after])
        for before, after in _edges(problem)
        if labels[before] != labels[after]
    )
    merged = nx.condensation(order)
    members: dict[int, list[int]] = {part: [] for part in merged}
    for unit, label in enumerate(labels):
        members[merged.graph["mapping"][label]].append(unit)
    ordered = nx.lexicographical_topological_sort(merged, key=lambda p: members[p][0])
    return tuple(
        _layer(costed, problem, units, weights, members[part]) for part in ordered
    )


def _trainable(costed: CostedGraph, units: Units) -> list[frozenset[Weight]]:
    """Return the trainable parameters that each unit reads."""
    read = read_weights(costed.graph)
    return [
        frozenset(w for node in nodes for w in read[node] if w.trainable)
        for nodes in units.nodes
    ]


def _labels(
    problem: Problem, units: Units, weights: Sequence[frozenset[Weight]]
) -> list[str]:
    """Name the layer of each unit."""
    blocks = [name.rpartition("@")[0] for name in problem.block_names]
    labels: list[str] = []
    module = latest = ""  # of the unit with parameters, or in a block, before
    for index, unit in enumerate(problem.units):
        if unit.block < 0 and not weights[index]:
            labels.append("")
            continue
        before = module
        if unit.block >= 0:
            module = latest = f"block {unit.block}"
        else:
            module = _outermost(info(units.nodes[index][0]).module, blocks)
            latest = latest if module == before else f"{module} from unit {index}"
        labels.append(latest)
    following = latest or "model"
    for index in reversed(range(len(labels))):
        following = labels[index] = labels[index] or following
    return labels


def _outermost(module: str, blocks: Sequence[str]) -> str:
    """Return the outermost module around ``module`` that holds no block."""
    parts = module.split(".")
    for length in range(1, len(parts)):
        outer = ".".join(parts[:length])
        if blocks and not any(f"{block}.".startswith(f"{outer}.") for block in blocks):
            return outer
    return module


def _edges(problem: Problem) -> Iterator[tuple[int, int]]:
    for value in problem.values:
        for reader in value.consumers:
            yield value.producer, reader
    yield from problem.order_edges


def _layer(
    costed: CostedGraph,
    problem: Problem,
    units: Units,
    weights: Sequence[frozenset[Weight]],
    members: Sequence[int],
) -> Layer:
    costs = [costed.costs[node] for unit in members for node in units.nodes[unit]]
    own = {weight for unit in members for weight in weights[unit]}
    return Layer(
        units=tuple(members),
        repeated=any(problem.units[unit].block >= 0 for unit in members),
        parameters=sum(weight.numel for weight in own),
        flops=sum(cost.forward_flops + cost.backward_flops for cost in costs),
    )
