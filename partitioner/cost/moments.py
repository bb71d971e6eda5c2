"""What a backward holds for a moment, unit by unit, and when that is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.cost.weights import read_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from partitioner.cost.units import Units
    from partitioner.costed import CostedGraph

__all__ = ["Moments", "moments"]

EXCEPTIONS = 16
"""Units before the tail that state what their own backward holds for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What the problem says of each unit; see ``solve.problem.Unit``."""

    reserved_bytes: int
    """What any backward before the tail holds."""
    transient_bytes: Sequence[int]
    beyond_bytes: Sequence[int]
    tail: Sequence[bool]


def moments(
    costed: CostedGraph,
    units: Units,
    blocks: Sequence[int],
    gradients: Sequence[int],
) -> Moments:
    """Return what the backward of each unit holds for a moment.

    Autograd runs the operations backwards in the order in which they ran. So where the
    backward of a unit runs, what later units saved for that micro-batch is gone.

    Before the first block this leaves next to nothing of a micro-batch. There the
    gradient of a weight (of an embedding's table) is taken to find room: in its place
    a step needs as much for every parameter.

    Args:
        costed: The priced graph.
        units: Its units.
        blocks: Number of the block of each unit, -1 for none.
        gradients: Bytes that stay until the backward ends, of each unit.
    """
    inside = [index for index, block in enumerate(blocks) if block >= 0]
    first, last = (inside[0], inside[-1]) if inside else (0, len(blocks))
    own = _held(costed, units, first)
    gone = _gone(costed, units, blocks, gradients)
    held = [size + max(0, -room) for size, room in zip(own, gone, strict=True)]
    tail = [index > last for index in range(len(blocks))]
    reserved = _reserved(held, blocks, tail)
    return Moments(
        reserved_bytes=reserved,
        transient_bytes=[
            size if late else max(0, size - reserved)
            for size, late in zip(held, tail, strict=True)
        ],
        beyond_bytes=[
            max(0, size - room) if block >= 0 else 0
            for size, room, block in zip(own, gone, blocks, strict=True)
        ],
        tail=tail,
    )


def _held(costed: CostedGraph, units: Units, first: int) -> list[int]:
    """Return what the backward of each unit holds; before ``first`` without weights."""
    weights = read_weights(costed.graph)

    def of(index: int, node: fx.Node) -> int:
        size = costed.costs[node].transient_bytes
        own = sum(weight.nbytes for weight in weights[node] if weight.trainable)
        return max(0, size - own) if index < first else size

    return [
        max(of(index, node) for node in nodes)
        for index, nodes in enumerate(units.nodes)
    ]


def _reserved(held: Sequence[int], blocks: Sequence[int], tail: Sequence[bool]) -> int:
    """Return what the units of blocks hold at most, and most of the others."""
    inside = [size for size, block in zip(held, blocks, strict=True) if block >= 0]
    before = [size for size, late in zip(held, tail, strict=True) if not late]
    most = sorted(before, reverse=True)
    common = most[EXCEPTIONS] if len(most) > EXCEPTIONS else 0
    return max([common, *inside])


def _gone(
    costed: CostedGraph,
    units: Units,
    blocks: Sequence[int],
    gradients: Sequence[int],
) -> list[int]:
    """Return what the rest of its block has freed, less gradients that came of it."""
    freed: dict[int, int] = defaultdict(int)
    found = [0] * len(blocks)
    for index in reversed(range(len(blocks))):
        block = blocks[index]
        if block >= 0:
            found[index] = freed[block]
            saved = sum(costed.costs[node].saved_bytes for node in units.nodes[index])
            freed[block] += saved - gradients[index]
    return found
