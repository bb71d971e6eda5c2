"""Gradients of one micro-batch that find no room in what it had saved."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from partitioner.solve.parts import Value

__all__ = ["passing_bytes", "read_alone"]


def passing_bytes(
    gradients: Sequence[int],
    saved: Sequence[int],
    blocks: Sequence[int],
    reads: Mapping[int, int] | None,
) -> list[int]:
    """Return what gradients of a micro-batch take beyond what their backward frees.

    A block's gradients have all come when its backward ends, and what it kept has gone:
    only their difference is there while earlier blocks run backwards. After the last
    block what was saved counts as gone already, so gradients count in full. Before the
    first block next to nothing of the micro-batch is left: gradients there find room,
    unless blocks are recomputed and so kept little.

    Args:
        gradients: Bytes that come for each unit.
        saved: Bytes that the units save.
        blocks: Number of the block of each unit, -1 for none.
        reads: What each block keeps if it is recomputed; None: no block is.
    """
    inside = [index for index, block in enumerate(blocks) if block >= 0]
    first, last = (inside[0], inside[-1]) if inside else (0, len(blocks))
    room: dict[int, int] = defaultdict(int, reads or {})
    if reads is None:
        for index in inside:
            room[blocks[index]] += saved[index]
    found = list(gradients)
    for index in reversed(range(min(last + 1, len(blocks)))):
        block = blocks[index]
        if block >= 0:
            found[index] = max(0, gradients[index] - room[block])
            room[block] -= gradients[index] - found[index]
        elif index < first and reads is None:
            found[index] = 0
        else:
            found[index] = max(0, gradients[index] - saved[index])
    return found


def read_alone(values: Iterable[Value], blocks: Sequence[int]) -> Mapping[int, int]:
    """Return the bytes that each block, and no other, reads from outside itself.

    They are kept while the block is to be recomputed, and gone after its backward.
    """
    alone: dict[int, int] = defaultdict(int)
    for value in values:
        readers = {blocks[reader] for reader in value.consumers}
        readers -= {blocks[value.producer]}
        if len(readers) == 1 and (block := readers.pop()) >= 0:
            alone[block] += value.wire_bytes
    return alone
