"""Bounds the stages that each group can be on if no stage may take longer than T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

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

        The ancestors of a group and itself fill as many stages as their work takes at
        the speeds of the ranks, T on each, so it cannot be before the last of them;
        likewise from the end.
        """
        groups, problem = self.groups, self.groups.problem
        stages = range(problem.stages)
        forwards = _capacity(problem, stages) * longest_s
        backwards = _capacity(problem, reversed(stages)) * longest_s
        return StageWindows(
            earliest=np.maximum(_stages(self.before_s, forwards), groups.earliest),
            latest=np.minimum(
                problem.stages - 1 - _stages(self.after_s, backwards), groups.latest
            ),
        )

    def least_longest_s(self) -> float:
        """Return a lower bound on the longest stage time, from work and windows."""
        groups = self.groups
        problem = groups.problem
        speeds = [problem.speed(stage) for stage in range(problem.stages)]
        total_s = float(groups.work_s.sum())
        low = max(
            total_s / float(_capacity(problem, range(problem.stages))[-1]),
            float(groups.work_s.max()) / max(speeds),
        )
        high = max(total_s / min(speeds), low)
        if self.windows(high).empty:
            return high
        while high - low > low * 1e-6 and high > 0:
            middle = (low + high) / 2
            if self.windows(middle).empty:
                low = middle
            else:
                high = middle
        return low


def _capacity(problem: Problem, stages: Iterable[int]) -> Floats:
    """Return the speed of all ranks that hold one of the first stages of a sequence."""
    speed_of: dict[int, float] = {}
    capacity = []
    for stage in stages:
        speed_of[problem.rank_of(stage)] = problem.speed(stage)
        capacity.append(sum(speed_of.values()))
    return np.array(capacity)


def _stages(work_s: Floats, capacity_s: Floats) -> Ints:
    """Return the first place in a sequence of stages up to which work can be done."""
    bare_s = work_s * (1 - SLACK) - SLACK * capacity_s[0]
    found: Ints = np.searchsorted(capacity_s, bare_s, side="left").astype(np.int64)
    return found


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
