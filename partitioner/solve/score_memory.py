"""Sums what the units of an assignment hold, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from partitioner.solve.parts import Tie, Unit
    from partitioner.solve.problem import Problem

__all__ = ["Moments", "held_bytes", "saved_bytes"]


@dataclass(slots=True)
class Moments:
    """What backwards on a stage hold for a moment, by where they are."""

    transient_bytes: int = 0
    freed_bytes: int = 0
    tail_transient_bytes: int = 0

    def add(self, unit: Unit) -> None:
        """Count a unit in."""
        self.freed_bytes += unit.freed_bytes
        if unit.tail:
            most = max(self.tail_transient_bytes, unit.transient_bytes)
            self.tail_transient_bytes = most
        else:
            self.transient_bytes = max(self.transient_bytes, unit.transient_bytes)


def held_bytes(
    problem: Problem, stage_of: Sequence[int], read: Callable[[Unit | Tie], int]
) -> list[int]:
    """Sum some bytes of units by stage, and of each tie once for each rank."""
    held = [0] * problem.stages
    for unit, stage in zip(problem.units, stage_of, strict=True):
        held[stage] += read(unit)
    for tie in problem.ties:
        for stage in _holders(problem, stage_of, tie):
            held[stage] += read(tie)
    return held


def _holders(problem: Problem, stage_of: Sequence[int], tie: Tie) -> Iterable[int]:
    """Return the stages that hold a copy of a tie: of each rank the first."""
    held: dict[int, int] = {}
    for stage in sorted({stage_of[unit] for unit in tie.units}):
        held.setdefault(problem.rank_of(stage), stage)
    return held.values()


def saved_bytes(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """Return what one micro-batch keeps and the peak of recomputing, by stage."""
    saved = [0] * problem.stages
    parts: dict[tuple[int, int], int] = {}  # (stage, block): bytes brought back
    beyond: dict[tuple[int, int], int] = {}  # and what a backward in it holds beyond
    for unit, stage, again in zip(problem.units, stage_of, recomputed, strict=True):
        if again:
            part = (stage, unit.block)
            parts[part] = parts.get(part, 0) + unit.saved_bytes
            beyond[part] = max(beyond.get(part, 0), unit.beyond_bytes)
        else:
            saved[stage] += unit.saved_bytes
    peak = [0] * problem.stages
    for (stage, block), part_bytes in parts.items():
        most = part_bytes + beyond[stage, block]
        peak[stage] = max(peak[stage], most)
    if parts:
        for stage, read_bytes in _block_reads(problem, stage_of, recomputed):
            saved[stage] += read_bytes
    return saved, peak


def _block_reads(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    """Yield (stage, bytes) of each value that a recomputed block reads from outside.

    Where all blocks are recomputed, once for all of a stage that read it.
    """
    part_of = [
        (stage, unit.block) if again else None
        for unit, stage, again in zip(problem.units, stage_of, recomputed, strict=True)
    ]
    for value in problem.values:
        readers = {part_of[reader] for reader in value.consumers}
        readers -= {part_of[value.producer]}
        places = [part[0] for part in readers if part is not None]
        for stage in set(places) if problem.checkpointing == "all" else places:
            yield stage, value.wire_bytes
