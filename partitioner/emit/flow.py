"""Which values every segment receives and hands on: relays and what is rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.graph import ModelGraph, info

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

    from partitioner.emit.fuse import Call

__all__ = ["Flow", "closure", "find_flow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Values between segments; ``incoming[i]`` enters segment i."""

    incoming: tuple[tuple[fx.Node, ...], ...]
    outgoing: tuple[fx.Node, ...]
    """What the last segment hands to the loss part."""
    first: tuple[fx.Node, ...]
    """Input nodes that the first stage receives."""
    late: tuple[fx.Node, ...]
    """Input nodes that the loss part receives."""


def closure(sources: Iterable[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Split what a segment reads into values it must be given and nodes it rebuilds.

    Args:
        sources: Nodes that are read.

    Returns:
        (values, rebuilt): placed nodes, inputs and free sizes that must be at hand,
        and constants, weights and size arithmetic, which every segment makes itself.
    """
    values: dict[fx.Node, None] = {}
    rebuilt: dict[fx.Node, None] = {}
    waiting = list(sources)
    while waiting:
        node = waiting.pop()
        if node in values or node in rebuilt:
            continue
        if is_rebuilt(node):
            rebuilt[node] = None
            waiting += node.all_input_nodes
            waiting += node.meta.get("rebuilt_with", ())
        else:
            values[node] = None
    return list(values), list(rebuilt)


def is_rebuilt(node: fx.Node) -> bool:
    """Whether every segment that reads ``node`` makes it itself."""
    kind = info(node).kind
    if kind == "size":  # arithmetic is rebuilt; the free size itself is a value
        return node.op == "call_function"
    return kind in ("weight", "constant")


def find_flow(
    graph: ModelGraph,
    calls: Sequence[Sequence[Call]],
    late: Sequence[fx.Node],
) -> Flow:
    """Return what crosses from each segment to the next.

    Args:
        graph: The recorded model.
        calls: For each segment what it runs, in order.
        late: Nodes that run in the loss part.
    """
    made_by = {node: i for i, run in enumerate(calls) for c in run for node in c.nodes}
    needs = [_needs(run, made_by, i) for i, run in enumerate(calls)]
    final, late_inputs = _final_needs(graph, late)
    needs.append(final)
    position = {node: index for index, node in enumerate(graph.graph.nodes)}
    alive: set[fx.Node] = set()
    incoming: list[tuple[fx.Node, ...]] = []
    for index in range(len(needs) - 1, -1, -1):
        run = calls[index] if index < len(calls) else ()
        alive -= {node for call in run for node in call.nodes}
        alive |= set(needs[index])
        if index == 0:
            alive = {info_input(node) for node in alive}
        incoming.append(tuple(sorted(alive, key=position.__getitem__)))
    incoming.reverse()
    return Flow(
        incoming=tuple(incoming[:-1]),
        outgoing=incoming[-1],
        first=incoming[0],
        late=tuple(late_inputs),
    )


def info_input(node: fx.Node) -> fx.Node:
    """Return the input that a free size is read from; an input is itself."""
    if info(node).kind == "size":
        return node.all_input_nodes[0]
    return node


def _needs(
    run: Sequence[Call], made_by: dict[fx.Node, int], index: int
) -> list[fx.Node]:
    values, _ = closure(source for call in run for source in call.reads())
    return [node for node in values if made_by.get(node) != index]


def _final_needs(
    graph: ModelGraph, late: Sequence[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return (values the loss part takes from the last segment, its own inputs)."""
    inside = set(late)
    output = next(iter(reversed(graph.graph.nodes)))
    sources = [s for node in late for s in node.all_input_nodes]
    values, _ = closure([*sources, *output.all_input_nodes])
    values = [node for node in values if node not in inside]
    # An input that the forward writes to must come from where it was written.
    written = {
        node
        for group in graph.groups
        if any(info(other).kind == "compute" for other in group)
        for node in group
    }
    inputs = [n for n in values if info(n).kind == "input" and n not in written]
    return [node for node in values if node not in inputs], inputs
