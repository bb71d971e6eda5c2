"""What every interval of an order holds as a stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from partitioner.solve.score import RECEIVED_COPIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups
    from partitioner.solve.reads import BlockRead

Floats: TypeAlias = "npt.NDArray[np.float64]"

__all__ = ["Floats", "IntervalMemory"]


class IntervalMemory(ABC):
    """The memory half of :class:`~partitioner.solve.intervals.Intervals`."""

    groups: Groups
    reads: Sequence[BlockRead]
    cut_bytes: Floats
    unit_segment: npt.NDArray[np.int64]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of segments between neighbouring positions."""

    @abstractmethod
    def prefix(self, weights: Sequence[float] | Floats) -> Floats:
        """Return sums of a number per unit up to each position."""

    @abstractmethod
    def coverage(self, items: Iterable[tuple[set[int], int, float]]) -> Floats:
        """Add a weight to every interval with at least one of some segments."""

    @abstractmethod
    def read_items(
        self, reads: Iterable[BlockRead]
    ) -> Iterable[tuple[set[int], int, float]]:
        """Return the arguments of `coverage` for what recomputed blocks keep."""

    @abstractmethod
    def read_once_items(self) -> Iterable[tuple[set[int], int, float]]:
        """Return the same where a value counts once for all blocks that read it."""

    @cached_property
    def static_bytes(self) -> Floats:
        """Weights and their states, each tie once."""
        problem = self.groups.problem
        held = self._with_ties(
            [unit.static_bytes for unit in problem.units],
            [tie.static_bytes for tie in problem.ties],
        )
        return held + problem.engine_bytes

    @cached_property
    def stepping_bytes(self) -> Floats:
        """What a stage holds while its optimizer steps."""
        problem = self.groups.problem
        step = self._with_ties(
            [unit.step_bytes for unit in problem.units],
            [tie.step_bytes for tie in problem.ties],
        )
        return self.static_bytes + self._wire_bytes + step

    @property
    def _wire_bytes(self) -> Floats:
        """One buffer each way, or two for what is received."""
        copies = self.groups.problem.received_buffers
        buffers: Floats = copies * self.cut_bytes[:, None] + self.cut_bytes[None, :]
        return buffers

    def _with_ties(self, units: Sequence[int], ties: Sequence[int]) -> Floats:
        """Sum bytes of units, and of each tie with a unit there once."""
        own = self.prefix([float(size) for size in units])
        readers = (
            (set(self.unit_segment[list(tie.units)].tolist()), -1, float(size))
            for tie, size in zip(self.groups.problem.ties, ties, strict=True)
        )
        return own[None, :] - own[:, None] + self.coverage(readers)

    def _transient_bytes(self, *, tail: bool) -> Floats:
        """Return the most that the backward of a unit holds, in the tail or before."""
        most = np.zeros(len(self))
        sizes = [
            float(unit.transient_bytes) * (unit.tail == tail)
            for unit in self.groups.problem.units
        ]
        np.maximum.at(most, self.unit_segment, sizes)
        table = np.zeros((len(self) + 1, len(self) + 1))
        for start in range(len(self)):
            table[start, start + 1 :] = np.maximum.accumulate(most[start:])
        return table

    @cached_property
    def freed_bytes(self) -> Floats:
        """Room that a backward has made once its tail is done."""
        units = self.groups.problem.units
        saved = self.prefix([float(unit.freed_bytes) for unit in units])
        table: Floats = saved[None, :] - saved[:, None]
        return table

    @cached_property
    def plain_peak_bytes(self) -> Floats:
        """What a backward holds for a moment if it recomputes nothing."""
        before = self.groups.problem.reserved_bytes + self._transient_bytes(tail=False)
        table: Floats = np.maximum(
            self._transient_bytes(tail=True), before - self.freed_bytes
        )
        return table

    @cached_property
    def kept_bytes(self) -> tuple[Floats, Floats]:
        """Saved by one micro-batch, and the peak of recomputing, if nothing is chosen.

        With ``checkpointing="all"`` every block is recomputed, else none.
        """
        units = self.groups.problem.units
        if self.groups.problem.checkpointing != "all":
            saved = self.prefix([float(unit.saved_bytes) for unit in units])
            return saved[None, :] - saved[:, None], np.zeros((1, 1))
        plain = self.prefix(
            [float(unit.saved_bytes) if unit.block < 0 else 0.0 for unit in units]
        )
        inputs = self.coverage(self.read_once_items())
        return plain[None, :] - plain[:, None] + inputs, self._peak_bytes()

    def _peak_bytes(self) -> Floats:
        prefixes = self.block_prefix(
            [unit.saved_bytes for unit in self.groups.problem.units]
        )
        if not len(prefixes):
            return np.zeros((1, 1))
        stops = np.arange(len(self) + 1)
        rows = []
        for start in stops:
            most = prefixes - prefixes[:, start, None]
            most = most + self.block_beyond(np.full_like(stops, start), stops)
            rows.append(most.max(axis=0))
        return np.stack(rows)

    def block_beyond(
        self, start: npt.NDArray[np.int64], stop: npt.NDArray[np.int64]
    ) -> Floats:
        """Return the largest ``beyond_bytes`` of each block in some intervals.

        Args:
            start: First segment of each interval.
            stop: End of each interval.

        Returns:
            An array of the shape (blocks, intervals).
        """
        units = self.groups.problem.units
        blocks = max((unit.block for unit in units), default=-1) + 1
        found = np.zeros((blocks, len(start)))
        for unit, segment in zip(units, self.unit_segment, strict=True):
            if unit.block >= 0 and unit.beyond_bytes:
                inside = (start <= segment) & (segment < stop)
                row = found[unit.block]
                np.maximum(row, inside * float(unit.beyond_bytes), out=row)
        return found

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
        received, sent = self.cut_bytes[:, None], self.cut_bytes[None, :]
        carried = RECEIVED_COPIES * received + sent
        moment = np.maximum(self.plain_peak_bytes, peak - self.freed_bytes)
        training = in_flight * (saved + carried) + self._wire_bytes + moment
        return np.maximum(self.static_bytes + training, self.stepping_bytes)
