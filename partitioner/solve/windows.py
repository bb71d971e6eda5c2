"""Bounds the stages that each group can be on if no stage may take longer than T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from partitioner.solve.groups import Groups

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

__all__ = ["Reach", "StageWindows", "reach"]

SLACK = 1e-9
"""Relative rounding that a sum of work is forgiven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindows:
    """First and last possible stage of each group, shape (groups,)."""

    earliest: Ints
    latest: Ints

    @property
    def empty(self) -> bool:
        """Whether some group has no stage left: a proof that T cannot be met."""
        return bool((self.earliest > self.latest).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Work that must come no later, and no earlier, than each group (inclusive)."""

    groups: Groups
    before_s: Floats
    after_s: Floats

    def windows(self, longest_s: float) -> StageWindows:
        """Return the windows under a limit on the stage time.

        The ancestors of a group and itself fill at least ``ceil(work / T)`` stages,
        so it cannot be before the last of them; likewise from the end.
        """
        groups = self.groups
        last = groups.problem.stages - 1
        if longest_s <= 0:
            earliest = np.where(self.before_s > 0, last + 1, 0)
            latest = np.where(self.after_s > 0, -1, last)
        else:
            earliest = _stages(self.before_s, longest_s) - 1
            latest = last + 1 - _stages(self.after_s, longest_s)
        return StageWindows(
            earliest=np.maximum(earliest, groups.earliest),
            latest=np.minimum(latest, groups.latest),
        )

    def least_longest_s(self) -> float:
        """Return a lower bound on the longest stage time, from work and windows."""
        groups = self.groups
        low = max(
            float(groups.work_s.sum()) / groups.problem.stages,
            float(groups.work_s.max()),
        )
        high = max(float(groups.work_s.sum()), low)
        if self.windows(high).empty:
            return high
        while high - low > low * 1e-6 and high > 0:
            middle = (low + high) / 2
            if self.windows(middle).empty:
                low = middle
            else:
                high = middle
        return low


def _stages(work_s: Floats, longest_s: float) -> Ints:
    count = np.ceil(work_s / longest_s * (1 - SLACK) - SLACK)
    return np.maximum(1, np.minimum(count, np.iinfo(np.int32).max)).astype(np.int64)


def reach(groups: Groups) -> Reach:
    """Sum the work of all ancestors and of all descendants of every group.

    Sets are rows of bits; sums go through a table of the 256 values of each byte.
    """
    count = len(groups)
    before = np.zeros((count, (count + 7) // 8), dtype=np.uint8)
    index = np.arange(count)
    before[index, index // 8] = 1 << (index % 8)
    after = before.copy()
    for source, target in groups.edges:  # sorted: the source's row is complete
        before[target] |= before[source]
    for source, target in reversed(groups.edges):
        after[source] |= after[target]
    return Reach(
        groups=groups,
        before_s=_row_sums(before, groups.work_s),
        after_s=_row_sums(after, groups.work_s),
    )


def _row_sums(rows: npt.NDArray[np.uint8], work_s: Floats) -> Floats:
    padded = np.zeros(rows.shape[1] * 8)
    padded[: len(work_s)] = work_s
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    table = bits @ padded.reshape(-1, 8).T  # (256, bytes of a row)
    sums = np.zeros(len(rows))
    for column in range(rows.shape[1]):
        sums += table[rows[:, column], column]
    return sums
