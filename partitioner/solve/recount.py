"""Counts time and memory of an assignment again, straight from the rules of `Problem`.

Shares no code with `score`: `check` compares the two.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve.parts import Value
    from partitioner.solve.problem import Problem

__all__ = ["Counted", "recount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the rules say of an assignment, rank by rank."""

    time_s: list[float]
    memory_bytes: list[int]


@dataclass(slots=True)
class _Stage:
    """What one stage adds up to."""

    work_s: float = 0.0
    host_s: float = 0.0
    paid_s: float = 0.0
    static: int = 0
    step: int = 0
    transient: int = 0
    tail_transient: int = 0
    freed: int = 0
    saved: int = 0
    received: int = 0
    sent: int = 0
    brought_back: defaultdict[int, int] = field(
        default_factory=lambda: defaultdict(int)
    )
    """Bytes that recomputing each block brings back."""
    beyond: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The most that a unit of each such block holds beyond that."""

    @property
    def slower_s(self) -> float:
        """What the device takes, or the host if there is anything for a device."""
        return max(self.work_s, self.host_s) if self.work_s else 0.0

    def peak(self, reserved: int) -> int:
        """What the larger of two moments of a backward holds on top."""
        blocks = [size + self.beyond[b] for b, size in self.brought_back.items()]
        before_tail = max([reserved + self.transient, *blocks]) - self.freed
        return max(self.tail_transient, before_tail)


def recount(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> Counted:
    """Count an assignment whose stages are all within range."""
    stages = [_Stage() for _ in range(problem.stages)]
    for unit, place, again in zip(problem.units, stage_of, recomputed, strict=True):
        here = stages[place]
        here.static += unit.static_bytes
        here.step += unit.step_bytes
        if unit.tail:
            here.tail_transient = max(here.tail_transient, unit.transient_bytes)
            here.freed += unit.saved_bytes
        else:
            here.transient = max(here.transient, unit.transient_bytes)
        here.freed -= unit.passing_bytes
        here.work_s += unit.backward_s + (2 if again else 1) * unit.forward_s
        here.host_s += unit.host_s
        if again:
            once_s = unit.forward_s + unit.backward_s
            here.host_s += unit.host_s * unit.forward_s / once_s if once_s else 0.0
            here.brought_back[unit.block] += unit.saved_bytes
            most = max(here.beyond[unit.block], unit.beyond_bytes)
            here.beyond[unit.block] = most
        else:
            here.saved += unit.saved_bytes
    for value in problem.values:
        _send(problem, stages, stage_of, value)
        places = [s for s, _ in _reading_blocks(problem, stage_of, recomputed, value)]
        for place in set(places) if problem.checkpointing == "all" else places:
            stages[place].saved += value.wire_bytes
    ranks = [_stages_of(problem, rank) for rank in range(_ranks(problem))]
    return Counted(
        time_s=[
            sum(stages[s].slower_s for s in held) / _speed(problem, rank)
            + sum(stages[s].paid_s for s in held)
            for rank, held in enumerate(ranks)
        ],
        memory_bytes=[_memory(problem, stages, stage_of, held) for held in ranks],
    )


def _ranks(problem: Problem) -> int:
    return problem.stages // (2 if problem.schedule == "dualpipev" else 1)


def _stages_of(problem: Problem, rank: int) -> list[int]:
    twin = problem.stages - 1 - rank
    return [rank, twin] if problem.schedule == "dualpipev" else [rank]


def _speed(problem: Problem, rank: int) -> float:
    return problem.devices[rank].speed if problem.devices else 1.0


def _send(
    problem: Problem, stages: list[_Stage], stage_of: Sequence[int], value: Value
) -> None:
    """Charge a value to the stages it leaves and reaches."""
    touched = {stage_of[value.producer], *(stage_of[u] for u in value.consumers)}
    if problem.transfer == "ends" and len(touched) > 1:
        for place in touched:
            stages[place].paid_s += value.hop_s
    for place in range(stage_of[value.producer], max(touched)):
        stages[place].sent += value.wire_bytes
        stages[place + 1].received += value.wire_bytes
        turn = problem.schedule == "dualpipev" and 2 * (place + 1) == problem.stages
        if problem.transfer == "hops" and not turn:
            spent_s = value.hop_s
            if problem.far and problem.far[place] and value.far_hop_s is not None:
                spent_s = value.far_hop_s
            if problem.schedule == "eager-1f1b":
                spent_s /= 2
            stages[place].paid_s += spent_s
            stages[place + 1].paid_s += spent_s


def _reading_blocks(
    problem: Problem,
    stage_of: Sequence[int],
    recomputed: Sequence[bool],
    value: Value,
) -> set[tuple[int, int]]:
    """Return the recomputed blocks, by stage, that read a value from outside."""
    made = (stage_of[value.producer], problem.units[value.producer].block)
    found = {
        (stage_of[reader], problem.units[reader].block)
        for reader in value.consumers
        if recomputed[reader]
    }
    return found - ({made} if recomputed[value.producer] else set())


def _memory(
    problem: Problem,
    stages: list[_Stage],
    stage_of: Sequence[int],
    held: list[int],
) -> int:
    """Return the bytes of a rank that holds some stages."""
    ties = [
        tie for tie in problem.ties if any(stage_of[unit] in held for unit in tie.units)
    ]
    here = [(stages[s], problem.in_flight[s]) for s in held]
    peak = max(s.peak(problem.reserved_bytes) for s, _ in here)
    kept = sum(count * (s.saved + 2 * s.received + s.sent) for s, count in here)
    stepping = sum(s.step for s, _ in here) + sum(tie.step_bytes for tie in ties)
    static = sum(s.static for s, _ in here) + sum(tie.static_bytes for tie in ties)
    copies = 2 if problem.schedule == "eager-1f1b" else 1
    buffers = sum(copies * s.received + s.sent for s, _ in here) + problem.engine_bytes
    return static + buffers + max(peak + kept, stepping)
