"""Activation-checkpoint blocks: the repeated layers that are recomputed as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import fx

    from partitioner.cost.units import Units
    from partitioner.graph import ModelGraph, Span

__all__ = ["outermost_blocks", "unit_blocks"]


def unit_blocks(graph: ModelGraph, units: Units) -> tuple[list[int], tuple[str, ...]]:
    """Return the block of each unit (-1: none) and the name of each block.

    A block is the outermost module call on the way to a node that is an element of an
    ``nn.ModuleList`` or ``nn.Sequential``. A unit belongs to the block that all its
    nodes share. A block that writes buffers (batch statistics) is one like any other:
    recomputation leaves buffers as the first run left them (``runtime.recompute``).
    """
    block_of = _node_blocks(graph)
    numbers: dict[str, int] = {}
    found = []
    for nodes in units.nodes:
        names = {block_of.get(node, "") for node in nodes}
        name = names.pop() if len(names) == 1 else ""
        found.append(numbers.setdefault(name, len(numbers)) if name else -1)
    return found, tuple(numbers)


def outermost_blocks(graph: ModelGraph) -> list[Span]:
    """Return the repeated module calls that are in no other, if callable whole."""
    repeated = [_is_repeated(graph.model, span.path) for span in graph.spans]
    return [
        span
        for span, is_block in zip(graph.spans, repeated, strict=True)
        if is_block
        and not span.opened_because
        and not any(repeated[index] for index in _around(graph, span))
    ]


def _around(graph: ModelGraph, span: Span) -> Iterator[int]:
    """Yield the indices of the enclosing spans, from the inside."""
    while span.parent is not None:
        yield span.parent
        span = graph.spans[span.parent]


def _node_blocks(graph: ModelGraph) -> Mapping[fx.Node, str]:
    block_of: dict[fx.Node, str] = {}
    # Enclosing calls hold more nodes than what they enclose: outermost first.
    for span in sorted(graph.spans, key=lambda span: -len(span.nodes)):
        if _is_repeated(graph.model, span.path):
            for node in span.nodes:
                block_of.setdefault(node, span.id)
    for node in graph.graph.nodes:
        if node.op == "call_module" and _is_repeated(graph.model, str(node.target)):
            block_of.setdefault(node, info(node).id)
    return block_of


def _is_repeated(model: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return bool(name) and isinstance(
        model.get_submodule(parent), nn.ModuleList | nn.Sequential
    )
