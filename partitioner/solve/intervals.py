"""Prices every interval of an order as a stage: seconds, bytes, whether it is legal."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from partitioner.solve.interval_memory import Floats, IntervalMemory
from partitioner.solve.positions import crossing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups
    from partitioner.solve.reads import BlockRead

Pairs: TypeAlias = "npt.NDArray[np.bool_]"
"""Marks intervals of a table, shape (m + 1, m + 1)."""

__all__ = ["Floats", "Intervals", "Pairs"]


class Intervals(IntervalMemory):
    """Costs of the intervals between the chosen positions of one order.

    Matrices have the shape (m + 1, m + 1); entry (i, j) is the stage that holds the
    groups from position ``bounds[i]`` up to, not including, ``bounds[j]``.
    """

    def __init__(
        self,
        groups: Groups,
        order: Sequence[int],
        bounds: npt.NDArray[np.int64],
        reads: Sequence[BlockRead],
    ) -> None:
        self.groups = groups
        self.order = order
        self.bounds = bounds
        self.reads = reads
        seconds, size, place = crossing(groups, order)
        self.cut_s = seconds[:, bounds]
        self.cut_bytes = size[bounds]
        self.place = place
        self.segment = np.searchsorted(bounds, place, side="right") - 1
        self.unit_segment = self.segment[list(groups.group_of)]
        self._time_s: dict[object, Floats] = {}

    def __len__(self) -> int:
        """Return m, the number of segments between neighbouring positions."""
        return len(self.bounds) - 1

    def prefix(self, weights: Sequence[float] | Floats) -> Floats:
        """Return sums of a number per unit up to each position, shape (m + 1,)."""
        sums = np.bincount(self.unit_segment, weights=weights, minlength=len(self))
        return np.concatenate([[0.0], np.cumsum(sums)])

    @cached_property
    def work_s(self) -> Floats:
        """Work of each interval at speed 1, without chosen recomputation."""
        sums = np.bincount(
            self.segment, weights=self.groups.work_s, minlength=len(self)
        )
        work_s = np.concatenate([[0.0], np.cumsum(sums)])
        spent: Floats = work_s[None, :] - work_s[:, None]
        return spent

    def communication_s(self, stage: int) -> Floats:
        """Communication of each interval as a stage."""
        problem = self.groups.problem
        if problem.transfer == "ends":
            return self._ends_s
        before, after = (
            self.cut_s[int(far)] * (not free) for free, far in self._around(stage)
        )
        around: Floats = before[:, None] + after[None, :]
        return around

    def _around(self, stage: int) -> list[tuple[bool, bool]]:
        """Return of the boundaries of a stage whether they are free, and far."""
        problem = self.groups.problem
        ends = stage, stage + 1
        return [(problem.is_free(end), problem.is_far(end)) for end in ends]

    @cached_property
    def _ends_s(self) -> Floats:
        """Time of values with some, but not all, of their ends inside."""
        touched = []
        whole = np.zeros((len(self) + 2, len(self) + 2))
        for value in self.groups.values:
            ends = self.segment[[value.producer, *value.consumers]]
            touched.append((set(ends.tolist()), -1, value.hop_s))
            whole[0, ends.max() + 1] += value.hop_s
            whole[ends.min() + 1, ends.max() + 1] -= value.hop_s
        inside = whole.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
        spent_s: Floats = (self.coverage(touched) - inside).clip(0)
        return spent_s

    def time_s(self, stage: int) -> Floats:
        """Time of each interval as a stage, without chosen recomputation."""
        problem = self.groups.problem
        key = (*self._around(stage), problem.speed(stage))
        if key not in self._time_s:
            work_s: Floats = self.work_s / problem.speed(stage)
            self._time_s[key] = work_s + self.communication_s(stage)
        return self._time_s[key]

    @cached_property
    def _sound(self) -> npt.NDArray[np.bool_]:
        """Whether the interval is not empty and has a parameter of its own."""
        flags = np.bincount(
            self.segment, weights=np.array(self.groups.weighted), minlength=len(self)
        )
        counted = np.concatenate([[0.0], np.cumsum(flags)])
        sound: npt.NDArray[np.bool_] = counted[None, :] > counted[:, None]
        return sound

    def allowed(self, stage: int) -> npt.NDArray[np.bool_]:
        """Return which intervals may be a stage, memory aside."""
        groups = self.groups
        wrong = (groups.earliest > stage) | (groups.latest < stage)
        if not wrong.any():
            return self._filled
        sums = np.bincount(self.segment, weights=wrong, minlength=len(self))
        misplaced = np.concatenate([[0.0], np.cumsum(sums)])
        fitting: npt.NDArray[np.bool_] = misplaced[None, :] == misplaced[:, None]
        return self._filled & fitting

    @cached_property
    def _filled(self) -> npt.NDArray[np.bool_]:
        """Whether the interval is sound and holds its quotas."""
        filled = self._sound
        for quota in self.groups.quotas:
            sums = np.bincount(self.segment, weights=quota.counts, minlength=len(self))
            held = np.concatenate([[0.0], np.cumsum(sums)])
            filled = filled & (held[None, :] - held[:, None] == quota.each)
        return filled

    def coverage(self, items: Iterable[tuple[set[int], int, float]]) -> Floats:
        """Add a weight to every interval with at least one of some segments.

        Args:
            items: Triples (segments, low, weight); an interval counts only if it
                starts after segment ``low``.
        """
        corner = np.zeros((len(self) + 2, len(self) + 2))
        for segments, low, weight in items:
            start = low + 1
            for segment in sorted(segments):
                if segment >= start:
                    corner[start, segment + 1] += weight
                    corner[segment + 1, segment + 1] -= weight
                    start = segment + 1
        return corner.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]

    def read_items(
        self, reads: Iterable[BlockRead]
    ) -> Iterable[tuple[set[int], int, float]]:
        """Return the arguments of `coverage` for what recomputed blocks keep."""
        for read in reads:
            low = int(self.unit_segment[read.producer]) if read.inside else -1
            segments = {int(self.unit_segment[reader]) for reader in read.readers}
            yield segments, low, float(read.wire_bytes)

    def read_once_items(self) -> Iterable[tuple[set[int], int, float]]:
        """Return the same where a value counts once for all blocks that read it.

        An interval that starts after the producer counts if it has any reader; another
        one if it has a reader of another block than the producer's.
        """
        by_value: dict[int, list[BlockRead]] = {}
        for read in self.reads:
            by_value.setdefault(read.value, []).append(read)
        for reads in by_value.values():
            low, weight = int(self.unit_segment[reads[0].producer]), reads[0].wire_bytes
            everywhere, outside = (
                {
                    int(self.unit_segment[reader])
                    for read in reads
                    if inside or not read.inside
                    for reader in read.readers
                }
                for inside in (True, False)
            )
            yield outside, -1, float(weight)
            yield everywhere, low, float(weight)
            yield outside, low, -float(weight)

    def stage_costs(self) -> list[Floats]:
        """Return, for each stage, the seconds of each interval; infinite if illegal.

        For ranks of one stage: a stage must fit the memory of its rank by itself.
        """
        problem = self.groups.problem
        by_kind: dict[object, Floats] = {}
        costs = []
        for stage in range(problem.stages):
            allowed, limit = self.allowed(stage), problem.limits[problem.rank_of(stage)]
            held = problem.in_flight[stage] if limit is not None else 0
            place = -1 if allowed is self._filled else stage
            key = (place, *self._around(stage), problem.speed(stage), limit, held)
            if key not in by_kind:
                if limit is not None:
                    allowed = allowed & (self.memory_bytes(held) <= limit)
                by_kind[key] = np.where(allowed, self.time_s(stage), math.inf)
            costs.append(by_kind[key])
        return costs

    def stage_of_groups(self, cuts: Sequence[int]) -> list[int]:
        """Return the stage of each group for a slicing of this table."""
        stage_of_segment = np.searchsorted(
            np.array(cuts[1:]), np.arange(len(self)), side="right"
        )
        return [int(stage) for stage in stage_of_segment[self.segment]]
