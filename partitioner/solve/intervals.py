"""Prices every interval of an order as a stage: seconds, bytes, whether it is legal."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from partitioner.solve.positions import crossing
from partitioner.solve.score import RECEIVED_COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups
    from partitioner.solve.reads import BlockRead

Floats: TypeAlias = "npt.NDArray[np.float64]"
Pairs: TypeAlias = "npt.NDArray[np.bool_]"
"""Marks intervals of a table, shape (m + 1, m + 1)."""

__all__ = ["Floats", "Intervals", "Pairs"]


class Intervals:
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

    @cached_property
    def static_bytes(self) -> Floats:
        """Weights and their states, each tie once."""
        problem = self.groups.problem
        return self._with_ties(
            [unit.static_bytes for unit in problem.units],
            [tie.static_bytes for tie in problem.ties],
        )

    @cached_property
    def step_bytes(self) -> Floats:
        """What the optimizer's step needs on top."""
        problem = self.groups.problem
        return self._with_ties(
            [unit.step_bytes for unit in problem.units],
            [tie.step_bytes for tie in problem.ties],
        )

    def _with_ties(self, units: Sequence[int], ties: Sequence[int]) -> Floats:
        """Sum bytes of units, and of each tie with a unit there once."""
        own = self.prefix([float(size) for size in units])
        readers = (
            (set(self.unit_segment[list(tie.units)].tolist()), -1, float(size))
            for tie, size in zip(self.groups.problem.ties, ties, strict=True)
        )
        return own[None, :] - own[:, None] + self.coverage(readers)

    @cached_property
    def transient_bytes(self) -> Floats:
        """The most that the backward of one unit holds beyond what is reserved."""
        most = np.zeros(len(self))
        sizes = [float(unit.transient_bytes) for unit in self.groups.problem.units]
        np.maximum.at(most, self.unit_segment, sizes)
        table = np.zeros((len(self) + 1, len(self) + 1))
        for start in range(len(self)):
            table[start, start + 1 :] = np.maximum.accumulate(most[start:])
        return table

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

    @cached_property
    def kept_bytes(self) -> tuple[Floats, Floats]:
        """Saved by one micro-batch, and the recomputation peak, if nothing is chosen.

        With ``checkpointing="all"`` every block is recomputed, else none.
        """
        units = self.groups.problem.units
        if self.groups.problem.checkpointing != "all":
            saved = self.prefix([float(unit.saved_bytes) for unit in units])
            return saved[None, :] - saved[:, None], np.zeros((1, 1))
        plain = self.prefix(
            [float(unit.saved_bytes) if unit.block < 0 else 0.0 for unit in units]
        )
        inputs = self.coverage(self.read_items(self.reads))
        return plain[None, :] - plain[:, None] + inputs, self._peak_bytes()

    def _peak_bytes(self) -> Floats:
        prefixes = self.block_prefix(
            [unit.saved_bytes for unit in self.groups.problem.units]
        )
        if not len(prefixes):
            return np.zeros((1, 1))
        return np.stack(
            [
                (prefixes - prefixes[:, i, None]).max(axis=0)
                for i in range(len(self) + 1)
            ]
        )

    def block_prefix(self, weights: Sequence[float]) -> Floats:
        """Return `prefix` for each block, shape (blocks, m + 1)."""
        units = self.groups.problem.units
        blocks = max((unit.block for unit in units), default=-1) + 1
        sums = np.zeros((blocks, len(self) + 1))
        block = np.array([unit.block for unit in units])
        inside = block >= 0
        np.add.at(
            sums,
            (block[inside], self.unit_segment[inside] + 1),
            np.array(weights, dtype=np.float64)[inside],
        )
        return sums.cumsum(axis=1)

    def memory_bytes(self, in_flight: int) -> Floats:
        """Return the memory of a stage that holds some micro-batches in flight."""
        saved, peak = self.kept_bytes
        received = RECEIVED_COPIES * self.cut_bytes[:, None]
        wire = self.cut_bytes[:, None] + self.cut_bytes[None, :]
        moment = np.maximum(peak, self.transient_bytes)
        moment = moment + self.groups.problem.reserved_bytes
        training = in_flight * (saved + received) + wire + moment
        return self.static_bytes + np.maximum(training, self.step_bytes)

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
