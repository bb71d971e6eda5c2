"""Contract nodes to units: what is placed on a stage as one, in a topological order."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx

from partitioner.capture.constraints import together
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import fx

    from partitioner.costed import CostedGraph
    from partitioner.graph import ModelGraph

__all__ = ["Units", "is_placed", "takes_part", "units", "used_results"]

_PLACED = frozenset({"input", "compute", "late", "output"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of a graph, numbered in a topological order."""

    unit_of: Mapping[fx.Node, int]
    """Unit of every placed node; weights, sizes and constants have none."""
    nodes: tuple[tuple[fx.Node, ...], ...]
    """Nodes of each unit in program order."""


def is_placed(node: fx.Node) -> bool:
    """Whether a node runs on one stage only (weights, sizes, constants run on any)."""
    return node.op == "output" or info(node).kind in _PLACED


def units(costed: CostedGraph) -> Units:
    """Contract ``costed``'s nodes to the smallest parts that a plan may separate.

    Together stay: the nodes of one of ``graph.groups``, the user's wishes aside (those
    are constraints of the problem); an operation and the items taken from its result;
    nodes that joining these would otherwise order both ways
    (strongly connected components of the contracted graph).
    """
    placed = [node for node in costed.graph.graph.nodes if is_placed(node)]
    rank = {node: position for position, node in enumerate(placed)}
    joined = nx.Graph()
    joined.add_nodes_from(placed)
    joined.add_edges_from(_joins(placed, _needed(costed.graph)))
    first = {
        node: min(part, key=rank.__getitem__)
        for part in nx.connected_components(joined)
        for node in part
    }
    order = nx.DiGraph()
    order.add_nodes_from(first.values())
    order.add_edges_from(
        (first[before], first[after])
        for before, after in _edges(placed, costed.graph.order_edges)
        if first[before] is not first[after]
    )
    return _number(placed, first, order, rank)


def _needed(graph: ModelGraph) -> Sequence[frozenset[fx.Node]]:
    """Return the groups without the user's: those are constraints of the problem."""
    wished = len(together(graph.graph, graph.spans, graph.constraints))
    return graph.groups[: len(graph.groups) - wished]


def _joins(
    placed: Iterable[fx.Node], groups: Iterable[frozenset[fx.Node]]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    for group in groups:
        members = [node for node in group if is_placed(node)]
        yield from itertools.pairwise(members)
    for node in placed:
        if takes_part(node):
            yield node.all_input_nodes[0], node


def takes_part(node: fx.Node) -> bool:
    """Whether the node is one of the several results of the operation before it."""
    if node.target is not operator.getitem or not isinstance(node.args[1], int | str):
        return False
    source = node.all_input_nodes[0]
    return is_placed(source) and len(info(source).outputs) > 1


def used_results(node: fx.Node) -> frozenset[int] | None:
    """Return the positions of the results that later nodes take; None: all of them.

    The others get no gradient: ``svd(x)[1]`` owes nothing for the vectors.
    """
    count = len(info(node).outputs)
    parts = [user for user in node.users if takes_part(user)]
    taken = frozenset(user.args[1] for user in parts if user.users)
    places = {at for at in taken if isinstance(at, int) and -count <= at < count}
    if count <= 1 or len(parts) != len(node.users) or places != taken:
        return None
    return frozenset(at % count for at in places)


def _edges(
    placed: Iterable[fx.Node], order_edges: Iterable[tuple[fx.Node, fx.Node]]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    for node in placed:
        for source in node.all_input_nodes:
            if is_placed(source):
                yield source, node
    for before, after in order_edges:
        if is_placed(before) and is_placed(after):
            yield before, after


def _number(
    placed: Sequence[fx.Node],
    first: Mapping[fx.Node, fx.Node],
    order: nx.DiGraph,
    rank: Mapping[fx.Node, int],
) -> Units:
    """Number the components of ``order``, in program order where it leaves a choice."""
    merged = nx.condensation(order)
    component = merged.graph["mapping"]
    start = {
        part: min(rank[node] for node in merged.nodes[part]["members"])
        for part in merged
    }
    ordered = nx.lexicographical_topological_sort(merged, key=start.__getitem__)
    number = {part: position for position, part in enumerate(ordered)}
    unit_of = {node: number[component[first[node]]] for node in placed}
    nodes: list[list[fx.Node]] = [[] for _ in number]
    for node in placed:
        nodes[unit_of[node]].append(node)
    return Units(unit_of=unit_of, nodes=tuple(map(tuple, nodes)))
