"""Activation-checkpoint blocks: the repeated layers that are recomputed as a whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from partitioner.cost.units import Units
    from partitioner.graph import ModelGraph, Span

__all__ = ["block_spans", "unit_blocks"]


LARGEST_SHARE = 1 / 8
"""Share of the model's operations above which a block is looked into: a stage of a
ResNet is a repeated module, but what one would measure and recompute are its layers."""


def unit_blocks(graph: ModelGraph, units: Units) -> tuple[list[int], tuple[str, ...]]:
    """Return the block of each unit (-1: none) and the name of each block.

    A unit belongs to the block that all its nodes share. A block that writes buffers
    (batch statistics) is one like any other: recomputation leaves buffers as the first
    run left them (``runtime.recompute``).
    """
    block_of = _node_blocks(graph)
    numbers: dict[str, int] = {}
    found = []
    for nodes in units.nodes:
        names = {block_of.get(node, "") for node in nodes}
        name = names.pop() if len(names) == 1 else ""
        found.append(numbers.setdefault(name, len(numbers)) if name else -1)
    return found, tuple(numbers)


def block_spans(graph: ModelGraph) -> list[Span]:
    """Return the module calls that are blocks, in the order of the recording.

    A block is the outermost call of an element of an ``nn.ModuleList`` or
    ``nn.Sequential``; where that is a large share of the model and is itself made of
    repeated modules of one class, those are the blocks.
    """
    inside = _repeated_inside(graph)
    limit = LARGEST_SHARE * len(graph.graph.nodes)
    waiting, found = inside.get(None, []), []
    while waiting:
        index = waiting.pop()
        span, nested = graph.spans[index], inside.get(index, [])
        if len(span.nodes) > limit and _has_equals(graph, nested):
            waiting += nested
        else:
            found.append(index)
    return [graph.spans[index] for index in sorted(found)]


def _repeated_inside(graph: ModelGraph) -> Mapping[int | None, list[int]]:
    """Return the repeated calls directly inside each repeated call (None: inside none).

    Directly: with no other repeated call between.
    """
    repeated = [_is_repeated(graph.model, span.path) for span in graph.spans]
    inside: dict[int | None, list[int]] = {}
    for index, is_repeated in enumerate(repeated):
        if is_repeated:
            around = graph.spans[index].parent
            while around is not None and not repeated[around]:
                around = graph.spans[around].parent
            inside.setdefault(around, []).append(index)
    return inside


def _has_equals(graph: ModelGraph, spans: Iterable[int]) -> bool:
    """Whether two of the calls are of modules of one class."""
    classes = Counter(
        type(graph.model.get_submodule(graph.spans[index].path)) for index in spans
    )
    return any(count > 1 for count in classes.values())


def _node_blocks(graph: ModelGraph) -> Mapping[fx.Node, str]:
    block_of = {node: span.id for span in block_spans(graph) for node in span.nodes}
    for node in graph.graph.nodes:
        if node.op == "call_module" and _is_repeated(graph.model, str(node.target)):
            block_of.setdefault(node, info(node).id)
    return block_of


def _is_repeated(model: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return bool(name) and isinstance(
        model.get_submodule(parent), nn.ModuleList | nn.Sequential
    )
