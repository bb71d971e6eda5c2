"""Counts time and memory of an assignment again, rank by rank, straight from the rules.

Shares no code with `score`, and takes its time: `check` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve.problem import Problem, Value

__all__ = ["Counted", "recount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the rules of `Problem` say of an assignment."""

    time_s: list[float]
    """Of each rank."""
    memory_bytes: list[int]
    """Of each rank."""


def recount(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> Counted:
    """Count an assignment whose stages are all within range."""
    paired = problem.schedule == "dualpipev"
    count = problem.stages // 2 if paired else problem.stages
    held = [
        [
            s
            for s in range(problem.stages)
            if s == r or (paired and s == _twin(problem, r))
        ]
        for r in range(count)
    ]
    counts = [_Rank(problem, stage_of, recomputed, stages) for stages in held]
    return Counted(
        time_s=[rank.time_s(index) for index, rank in enumerate(counts)],
        memory_bytes=[rank.memory_bytes() for rank in counts],
    )


def _twin(problem: Problem, rank: int) -> int:
    return problem.stages - 1 - rank


@dataclass(frozen=True, slots=True)
class _Rank:
    problem: Problem
    stage_of: Sequence[int]
    recomputed: Sequence[bool]
    stages: list[int]

    def time_s(self, index: int) -> float:
        problem = self.problem
        speed = problem.devices[index].speed if problem.devices else 1.0
        work_s = sum(
            unit.forward_s + unit.backward_s + (unit.forward_s if again else 0.0)
            for unit, stage, again in zip(
                problem.units, self.stage_of, self.recomputed, strict=True
            )
            if stage in self.stages
        )
        hops_s = sum(value.hop_s * self._times_paid(value) for value in problem.values)
        return work_s / speed + hops_s

    def _span(self, value: Value) -> tuple[int, int]:
        reached = [self.stage_of[unit] for unit in (value.producer, *value.consumers)]
        return self.stage_of[value.producer], max(reached)

    def _times_paid(self, value: Value) -> int:
        """Return how often this rank pays for one crossing of a value."""
        if self.problem.transfer == "ends":
            touched = {self.stage_of[u] for u in (value.producer, *value.consumers)}
            return int(len(touched) > 1 and self.stages[0] in touched)
        made, last = self._span(value)
        paid = 0
        for before in range(made, last):
            ends = (before, before + 1)
            inside = sum(end in self.stages for end in ends)
            paid += inside if inside < 2 else 0  # noqa: PLR2004 -- both ends: no wire
        return paid

    def memory_bytes(self) -> int:
        stages = [self._stage_bytes(stage) for stage in self.stages]
        ties = sum(
            tie.static_bytes
            for tie in self.problem.ties
            if any(self.stage_of[unit] in self.stages for unit in tie.units)
        )
        return sum(stages) + ties + max(map(self._peak_bytes, self.stages))

    def _stage_bytes(self, stage: int) -> int:
        problem = self.problem
        static = saved = received = sent = 0
        for index, unit in enumerate(problem.units):
            if self.stage_of[index] == stage:
                static += unit.static_bytes
                saved += 0 if self.recomputed[index] else unit.saved_bytes
        for value in problem.values:
            made, last = self._span(value)
            received += value.wire_bytes if made < stage <= last else 0
            sent += value.wire_bytes if made <= stage < last else 0
            saved += value.wire_bytes * len(self._reading_blocks(value, stage))
        in_flight = problem.in_flight[stage]
        return static + in_flight * (saved + 2 * received) + received + sent

    def _reading_blocks(self, value: Value, stage: int) -> set[int]:
        """Return the recomputed blocks of a stage that read a value from outside."""
        units = self.problem.units
        blocks = {
            units[reader].block
            for reader in value.consumers
            if self.stage_of[reader] == stage and self.recomputed[reader]
        }
        if self.stage_of[value.producer] == stage and self.recomputed[value.producer]:
            blocks.discard(units[value.producer].block)
        return blocks

    def _peak_bytes(self, stage: int) -> int:
        blocks: dict[int, int] = {}
        for index, unit in enumerate(self.problem.units):
            if self.stage_of[index] == stage and self.recomputed[index]:
                blocks[unit.block] = blocks.get(unit.block, 0) + unit.saved_bytes
        return max(blocks.values(), default=0)
