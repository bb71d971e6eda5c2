"""What a cut inside a module costs that would otherwise be called whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.cost.blocks import block_spans
from partitioner.costed import Opening
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import fx

    from partitioner.costed import NodeCost
    from partitioner.graph import ModelGraph, Span

__all__ = ["estimated_openings", "opening"]

OPENING_SHARE = 0.002
"""Estimate where nothing was measured: a fifth of a percent of the block's time, so
that a cut goes through a block for a gain, never for nothing."""


def estimated_openings(
    graph: ModelGraph, costs: Mapping[fx.Node, NodeCost]
) -> tuple[Opening, ...]:
    """Return the opening of every repeated module, by estimate.

    Args:
        graph: The recorded model.
        costs: Price of every node.
    """
    order = list(graph.graph.nodes)
    found = []
    for span in block_spans(graph):
        if span.opened_because:
            continue
        inside = [costs[node] for node in span.nodes]
        block_s = sum(cost.forward_s + cost.backward_s for cost in inside)
        found += opening(order, span, OPENING_SHARE * block_s)
    return tuple(found)


def opening(order: Sequence[fx.Node], span: Span, seconds: float) -> list[Opening]:
    """Return what a cut inside ``span`` costs; nothing if it has no inside.

    Args:
        order: All nodes in program order.
        span: A module call.
        seconds: What it takes longer, node by node.
    """
    last = {node for _, node in span.outputs} & span.nodes
    within = _ancestors(last, span)
    path = [node for node in order if node in within]
    if len(path) < 2:  # noqa: PLR2004 (a cut needs two sides)
        return []
    return [Opening(module=span.id, first=path[0], last=path[-1], seconds=seconds)]


def _ancestors(nodes: set[fx.Node], span: Span) -> set[fx.Node]:
    """Return what ``nodes`` depend on inside ``span``, themselves included."""
    found: set[fx.Node] = set()
    waiting = [node for node in nodes if info(node).kind == "compute"]
    while waiting:
        node = waiting.pop()
        if node in span.nodes and info(node).kind == "compute" and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
