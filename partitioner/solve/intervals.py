"""Prices every interval of an order as a stage: seconds, bytes, whether it is legal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from partitioner.solve.score import RECEIVED_COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups

Floats: TypeAlias = "npt.NDArray[np.float64]"
Pairs: TypeAlias = "npt.NDArray[np.bool_]"
"""Marks intervals of a table, shape (m + 1, m + 1)."""

__all__ = [
    "BlockRead",
    "Floats",
    "Intervals",
    "Pairs",
    "block_reads",
    "choose_bounds",
    "refined",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead:
    """A value and the units of one block that read it."""

    block: int
    readers: tuple[int, ...]
    producer: int
    inside: bool
    """Whether the producer is in the same block."""
    wire_bytes: int


def block_reads(groups: Groups) -> list[BlockRead]:
    """List what each activation-checkpoint block reads."""
    units = groups.problem.units
    reads = []
    for value in groups.problem.values:
        by_block: dict[int, list[int]] = {}
        for reader in value.consumers:
            by_block.setdefault(units[reader].block, []).append(reader)
        for block, readers in by_block.items():
            if block >= 0:
                reads.append(
                    BlockRead(
                        block=block,
                        readers=tuple(readers),
                        producer=value.producer,
                        inside=units[value.producer].block == block,
                        wire_bytes=value.wire_bytes,
                    )
                )
    return reads


def _crossing(
    groups: Groups, order: Sequence[int]
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return seconds and bytes over each cut of the order, and each group's place."""
    place = np.empty(len(order), dtype=np.int64)
    place[list(order)] = np.arange(len(order))
    seconds = np.zeros(len(order) + 1)
    size = np.zeros(len(order) + 1)
    for value in groups.values:
        first = place[value.producer] + 1
        last = max(place[reader] for reader in value.consumers) + 1
        seconds[first] += value.hop_s
        seconds[last] -= value.hop_s
        size[first] += value.wire_bytes
        size[last] -= value.wire_bytes
    seconds = np.cumsum(seconds).clip(0)
    seconds[[0, -1]] = 0.0
    return seconds, np.cumsum(size), place


def choose_bounds(
    groups: Groups, order: Sequence[int], most: int
) -> npt.NDArray[np.int64]:
    """Choose the positions of an order where a stage may end.

    Args:
        groups: What the order lays out.
        order: Groups in a topological order.
        most: Keep all positions up to this number; above it, the cheapest cut of each
            of ``most`` buckets of equal work.

    Returns:
        Ascending positions, the first 0 and the last ``len(order)``.
    """
    count = len(order)
    if count <= most:
        return np.arange(count + 1)
    seconds, size, _ = _crossing(groups, order)
    work_s = np.concatenate([[0.0], np.cumsum(groups.work_s[list(order)])])
    total_s = work_s[-1] or 1.0
    bucket = np.minimum((work_s / total_s * most).astype(np.int64), most - 1)
    ranked = np.lexsort((np.arange(count + 1), size, seconds, bucket))
    _, first = np.unique(bucket[ranked], return_index=True)
    return np.unique(np.concatenate([[0], ranked[first], [count]]))


def refined(
    table: Intervals, cuts: Sequence[int], most: int
) -> tuple[Intervals, npt.NDArray[np.bool_]]:
    """Return a table with finer positions around the cuts of a slicing.

    Args:
        table: The table that was sliced.
        cuts: Its slicing; every cut may move up to the neighbouring positions.
        most: Keep about this many positions.

    Returns:
        The table, and which of its intervals lie between neighbouring cuts.
    """
    order = list(table.order)
    work_s = np.concatenate([[0.0], np.cumsum(table.groups.work_s[order])])
    seconds, _, _ = _crossing(table.groups, order)
    each = max(3, most // max(1, len(cuts) - 2))
    owner = {0: 0, len(order): len(cuts) - 1}
    for number, cut in enumerate(cuts[1:-1], start=1):
        low, high = table.bounds[cut - 1], table.bounds[cut + 1]
        inside = np.arange(low + 1, high)
        bucket = ((work_s[inside] - work_s[low]) * each).astype(np.float64)
        bucket //= max(work_s[high] - work_s[low], 1e-30)
        ranked = np.lexsort((inside, seconds[inside], bucket))
        _, first = np.unique(bucket[ranked], return_index=True)
        for position in [*inside[ranked[first]].tolist(), int(table.bounds[cut])]:
            owner.setdefault(position, number)
    bounds = np.array(sorted(owner))
    owners = np.array([owner[position] for position in bounds.tolist()])
    pairs = owners[None, :] == owners[:, None] + 1
    return Intervals(table.groups, table.order, bounds, table.reads), pairs


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
        seconds, size, place = _crossing(groups, order)
        self.cut_s = seconds[bounds]
        self.cut_bytes = size[bounds]
        self.place = place
        self.segment = np.searchsorted(bounds, place, side="right") - 1
        self.unit_segment = self.segment[list(groups.group_of)]

    def __len__(self) -> int:
        """Return m, the number of segments between neighbouring positions."""
        return len(self.bounds) - 1

    def prefix(self, weights: Sequence[float] | Floats) -> Floats:
        """Return sums of a number per unit up to each position, shape (m + 1,)."""
        sums = np.bincount(self.unit_segment, weights=weights, minlength=len(self))
        return np.concatenate([[0.0], np.cumsum(sums)])

    @cached_property
    def time_s(self) -> Floats:
        """Stage time without chosen recomputation."""
        sums = np.bincount(
            self.segment, weights=self.groups.work_s, minlength=len(self)
        )
        work_s = np.concatenate([[0.0], np.cumsum(sums)])
        return (work_s + self.cut_s)[None, :] - (work_s - self.cut_s)[:, None]

    @cached_property
    def _sound(self) -> npt.NDArray[np.bool_]:
        """Whether the interval is not empty and has a trainable parameter."""
        flags = np.bincount(
            self.segment, weights=np.array(self.groups.trainable), minlength=len(self)
        )
        trained = np.concatenate([[0.0], np.cumsum(flags)])
        sound: npt.NDArray[np.bool_] = trained[None, :] > trained[:, None]
        return sound

    def allowed(self, stage: int) -> npt.NDArray[np.bool_]:
        """Return which intervals may be a stage, memory aside."""
        groups = self.groups
        wrong = (groups.earliest > stage) | (groups.latest < stage)
        if not wrong.any():
            return self._sound
        sums = np.bincount(self.segment, weights=wrong, minlength=len(self))
        misplaced = np.concatenate([[0.0], np.cumsum(sums)])
        fitting: npt.NDArray[np.bool_] = misplaced[None, :] == misplaced[:, None]
        return self._sound & fitting

    @cached_property
    def static_bytes(self) -> Floats:
        """Weights and their states, each tie once."""
        problem = self.groups.problem
        own = self.prefix([float(unit.static_bytes) for unit in problem.units])
        ties = (
            (set(self.unit_segment[list(tie.units)].tolist()), -1, tie.static_bytes)
            for tie in problem.ties
        )
        return own[None, :] - own[:, None] + self.coverage(ties)

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
        return self.static_bytes + in_flight * (saved + received) + peak + wire

    def stage_costs(self) -> list[Floats]:
        """Return, for each stage, the seconds of each interval; infinite if illegal."""
        problem = self.groups.problem
        by_kind: dict[int, Floats] = {}
        costs = []
        for stage in range(problem.stages):
            allowed = self.allowed(stage)
            in_flight = problem.in_flight[stage]
            if problem.memory_limit_bytes is not None:
                fits = self.memory_bytes(in_flight) <= problem.memory_limit_bytes
                allowed = allowed & fits
            key = -1 if allowed is self._sound else stage
            if key not in by_kind:
                by_kind[key] = np.where(allowed, self.time_s, math.inf)
            costs.append(by_kind[key])
        return costs

    def stage_of_groups(self, cuts: Sequence[int]) -> list[int]:
        """Return the stage of each group for a slicing of this table."""
        stage_of_segment = np.searchsorted(
            np.array(cuts[1:]), np.arange(len(self)), side="right"
        )
        return [int(stage) for stage in stage_of_segment[self.segment]]
