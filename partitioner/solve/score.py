"""Gives the time and the memory of every stage: the one definition of both."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from partitioner.solve.score_memory import Moments, held_bytes, saved_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve.parts import Unit
    from partitioner.solve.problem import Problem

__all__ = ["RankScore", "Score", "StageScore", "score"]

RECEIVED_COPIES = 2
"""A received tensor exists twice per micro-batch in flight: packed, as the leaf whose
gradient goes back, and unpacked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageScore:
    """Time of one micro-batch and peak memory of one stage."""

    forward_s: float
    backward_s: float
    recompute_s: float
    """Forward time spent again on recomputed units."""
    host_bound: bool
    """The host needs longer than the device, and all these times are its own."""
    communication_s: float
    """Time of all values that cross the boundaries before and after the stage."""
    static_bytes: int
    saved_bytes: int
    """Saved for backward, over all micro-batches in flight."""
    received_bytes: int
    """Received values kept, over all micro-batches in flight."""
    sent_kept_bytes: int
    """What was sent and waits for its gradient, over all micro-batches in flight."""
    wire_bytes: int
    """One buffer for what is received and one for the gradient of what is sent."""
    recompute_peak_bytes: int
    """The most that recomputing a block brings back, with its backward."""
    reserved_bytes: int
    """What any backward holds for a moment: gradients of activations."""
    transient_bytes: int
    """What the backward of one unit here, not of the tail, holds beyond that."""
    freed_bytes: int
    """Part of what one micro-batch saved that is gone when a block's backward runs,
    less gradients that have come in its place."""
    tail_transient_bytes: int
    """The most that the backward of a unit of the tail holds (a large loss)."""
    step_bytes: int
    """What the optimizer's step needs on top of the static bytes."""
    sent_bytes: int
    """Bytes over the boundary after the stage, forwards, by one micro-batch."""

    @property
    def time_s(self) -> float:
        """Time of one micro-batch on this stage."""
        work_s = self.forward_s + self.backward_s + self.recompute_s
        return work_s + self.communication_s

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the stage: in training or in the optimizer's step."""
        stepping = self.wire_bytes + self.step_bytes
        return self.static_bytes + max(self.activation_bytes, stepping)

    @property
    def activation_bytes(self) -> int:
        """Peak of everything that is not there for the whole run, in training."""
        return self.kept_bytes + self.peak_bytes

    @property
    def in_flight_bytes(self) -> int:
        """What micro-batches in flight hold."""
        return self.saved_bytes + self.received_bytes + self.sent_kept_bytes

    @property
    def kept_bytes(self) -> int:
        """What micro-batches in flight hold, and the buffers of the wire."""
        return self.in_flight_bytes + self.wire_bytes

    @property
    def peak_bytes(self) -> int:
        """What the larger of two moments of a backward holds on top."""
        return max(self.tail_transient_bytes, self.block_moment_bytes)

    @property
    def block_moment_bytes(self) -> int:
        """What a backward holds on top once its tail is done; may be below zero."""
        plain = self.reserved_bytes + self.transient_bytes
        return max(plain, self.recompute_peak_bytes) - self.freed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankScore:
    """Time of one micro-batch and peak memory of one rank, all its stages together."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Times and memory of all stages of one assignment."""

    stages: tuple[StageScore, ...]
    ranks: tuple[RankScore, ...]
    micro_batches: int
    step_s: float
    """Step time, see ``Problem.step_weights``."""
    objective_s: float
    """What was to be minimised, see ``Problem.weights``."""

    @property
    def bottleneck(self) -> int:
        """Index of the slowest rank (a stage, under 1F1B), the first of equals."""
        times = [rank.time_s for rank in self.ranks]
        return times.index(max(times))

    @property
    def bubble_share(self) -> float:
        """Share of the ranks' time that is idle: ``1 - M * sum(t) / (S * step)``.

        With equal stages under 1F1B this is ``(S - 1) / (M + S - 1)`` (Huang et al.,
        GPipe, NeurIPS 2019, section 2.3).
        """
        if self.step_s <= 0:
            return 0.0
        busy_s = self.micro_batches * sum(rank.time_s for rank in self.ranks)
        return max(0.0, 1 - busy_s / (len(self.ranks) * self.step_s))


def score(
    problem: Problem, stage_of: Sequence[int], recomputed: Sequence[bool]
) -> Score:
    """Score an assignment, feasible or not.

    Args:
        problem: What was to be placed.
        stage_of: Stage of each unit, ``len(problem.units)`` numbers.
        recomputed: Whether each unit is recomputed in backward.

    Returns:
        Time and memory of every stage, in seconds and bytes.
    """
    communication_s, hop_bytes = _communication(problem, stage_of)
    static = held_bytes(problem, stage_of, attrgetter("static_bytes"))
    saved, peak = saved_bytes(problem, stage_of, recomputed)
    moments = [Moments() for _ in range(problem.stages)]
    step = held_bytes(problem, stage_of, attrgetter("step_bytes"))
    work = [_Work() for _ in range(problem.stages)]
    for unit, stage, again in zip(problem.units, stage_of, recomputed, strict=True):
        work[stage].add(unit, again=again)
        moments[stage].add(unit)
    pace = [work[s].late / problem.speed(s) for s in range(problem.stages)]
    rows = tuple(
        StageScore(
            forward_s=work[s].forward_s * pace[s],
            backward_s=work[s].backward_s * pace[s],
            recompute_s=work[s].recompute_s * pace[s],
            host_bound=work[s].late > 1,
            communication_s=communication_s[s],
            static_bytes=static[s] + problem.engine_bytes * (s < problem.ranks),
            saved_bytes=problem.in_flight[s] * saved[s],
            received_bytes=problem.in_flight[s] * RECEIVED_COPIES * hop_bytes[s],
            sent_kept_bytes=problem.in_flight[s] * hop_bytes[s + 1],
            wire_bytes=problem.received_buffers * hop_bytes[s] + hop_bytes[s + 1],
            recompute_peak_bytes=peak[s],
            reserved_bytes=problem.reserved_bytes,
            transient_bytes=moments[s].transient_bytes,
            freed_bytes=moments[s].freed_bytes,
            tail_transient_bytes=moments[s].tail_transient_bytes,
            step_bytes=step[s],
            sent_bytes=hop_bytes[s + 1],
        )
        for s in range(problem.stages)
    )
    ranks = tuple(
        _rank([rows[s] for s in problem.stages_of(r)]) for r in range(problem.ranks)
    )
    times = [rank.time_s for rank in ranks]
    return Score(
        stages=rows,
        ranks=ranks,
        micro_batches=problem.micro_batches,
        step_s=_weighted(problem.step_weights, times),
        objective_s=_weighted(problem.weights, times),
    )


@dataclass(slots=True)
class _Work:
    """What a stage computes in one micro-batch, and what its host needs for it."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    host_s: float = 0.0

    def add(self, unit: Unit, *, again: bool) -> None:
        self.forward_s += unit.forward_s
        self.backward_s += unit.backward_s
        self.recompute_s += unit.forward_s if again else 0.0
        self.host_s += unit.needs_s(again=again)[1]

    @property
    def late(self) -> float:
        """How much longer all takes than on a device that never waits for its host."""
        device_s = self.forward_s + self.backward_s + self.recompute_s
        return max(1.0, self.host_s / device_s) if device_s else 1.0


def _weighted(weights: tuple[float, float], times: Sequence[float]) -> float:
    return weights[0] * max(times) + weights[1] * sum(times)


def _rank(rows: Sequence[StageScore]) -> RankScore:
    """Sum the stages of a rank; only one backward runs at a time."""
    activations = sum(row.kept_bytes for row in rows)
    activations += max(row.peak_bytes for row in rows)
    step = sum(row.wire_bytes + row.step_bytes for row in rows)
    return RankScore(
        time_s=sum(row.time_s for row in rows),
        memory_bytes=sum(row.static_bytes for row in rows) + max(activations, step),
    )


def _communication(
    problem: Problem, stage_of: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Return seconds of communication by stage, and bytes over each boundary.

    Boundary b lies before stage b; there is one more at the end.
    """
    hop_s, hop_bytes = _boundaries(problem, stage_of)
    if problem.transfer == "ends":
        return _at_ends_s(problem, stage_of), hop_bytes
    wire_s = [
        0.0 if problem.is_free(boundary) else seconds
        for boundary, seconds in enumerate(hop_s)
    ]
    paid = problem.paid_share
    spent_s = [paid * (wire_s[s] + wire_s[s + 1]) for s in range(problem.stages)]
    return spent_s, hop_bytes


def _at_ends_s(problem: Problem, stage_of: Sequence[int]) -> list[float]:
    """Charge each value that leaves its stage to every stage that makes or reads it."""
    spent_s = [0.0] * problem.stages
    for value in problem.values:
        touched = {stage_of[unit] for unit in (value.producer, *value.consumers)}
        if len(touched) > 1:
            for stage in touched:
                spent_s[stage] += value.hop_s
    return spent_s


def _boundaries(
    problem: Problem, stage_of: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Return seconds and bytes over the boundary *before* each stage, and the end."""
    hop_s = [0.0] * (problem.stages + 1)
    hop_bytes = [0] * (problem.stages + 1)
    for value in problem.values:
        first = stage_of[value.producer]
        last = max((stage_of[reader] for reader in value.consumers), default=first)
        for boundary in range(first + 1, last + 1):
            hop_s[boundary] += value.crossing_s(far=problem.is_far(boundary))
            hop_bytes[boundary] += value.wire_bytes
    return hop_s, hop_bytes
