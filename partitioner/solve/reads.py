"""Lists what activation-checkpoint blocks read: recomputing one keeps its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partitioner.solve.groups import Groups

__all__ = ["BlockRead", "block_reads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead:
    """A value and the units of one block that read it."""

    block: int
    value: int
    """Number of the value."""
    readers: tuple[int, ...]
    producer: int
    inside: bool
    """Whether the producer is in the same block."""
    wire_bytes: int


def block_reads(groups: Groups) -> list[BlockRead]:
    """List what each activation-checkpoint block reads."""
    units = groups.problem.units
    reads = []
    for index, value in enumerate(groups.problem.values):
        by_block: dict[int, list[int]] = {}
        for reader in value.consumers:
            by_block.setdefault(units[reader].block, []).append(reader)
        for block, readers in by_block.items():
            if block >= 0:
                reads.append(
                    BlockRead(
                        block=block,
                        value=index,
                        readers=tuple(readers),
                        producer=value.producer,
                        inside=units[value.producer].block == block,
                        wire_bytes=value.wire_bytes,
                    )
                )
    return reads
