"""Slices one order into stages with the least step time, by dynamic programming."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]

__all__ = ["Slicing", "least_bottleneck", "least_step"]

MAX_TRIALS = 80
"""Thresholds tried on a large table; small tables are searched to the end."""
SMALL_TABLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """Where to cut: stage s is the interval ``cuts[s]`` to ``cuts[s + 1]``."""

    value: float
    """Step time, or the largest cost where that is what was minimised."""
    sum_s: float
    longest_s: float
    cuts: tuple[int, ...]


def least_bottleneck(costs: Sequence[Matrix]) -> Slicing | None:
    """Minimise the largest cost of a slicing: ``F[s][j] = min_i max(F[s-1][i], C)``.

    Args:
        costs: For each stage s, ``C[i, j]``: the cost of interval i to j as stage s,
            infinite where it is not allowed. Seconds or bytes, shape (m + 1, m + 1).

    Returns:
        The best slicing, or None if none is allowed.
    """
    best = costs[0][0]
    choices: list[npt.NDArray[np.int64]] = []
    for cost in costs[1:]:
        longest = np.maximum(best[:, None], cost)
        choice = longest.argmin(axis=0)
        best = np.take_along_axis(longest, choice[None], axis=0)[0]
        choices.append(choice)
    return _trace(costs, choices, float(best[-1]))


def least_step(
    costs: Sequence[Matrix], micro_batches: int, *, cutoff_s: float = math.inf
) -> Slicing | None:
    """Minimise ``sum(t) + (M - 1) * max(t)`` over the slicings of one order.

    For a threshold on the longest stage, the least sum is a shortest path; thresholds
    are searched by halving (Zheng et al., Alpa, OSDI 2022, section 5.2, enumerates
    them). Exact for tables of up to `SMALL_TABLE` intervals; for larger ones, at most
    `MAX_TRIALS` thresholds are tried.

    Args:
        costs: As for `least_bottleneck`, in seconds.
        micro_batches: M.
        cutoff_s: Slicings that take this long or longer are of no interest.

    Returns:
        The best slicing below the cutoff, or None.
    """
    shortest = least_bottleneck(costs)
    if shortest is None:
        return None
    search = _Search(costs, micro_batches, cutoff_s)
    low = search.least_sum(shortest.longest_s)
    high = search.least_sum(math.inf)
    if low is not None and high is not None:
        search.between(low, high)
    return search.best


class _Search:
    """Halves the range of thresholds until none can hold a better slicing."""

    def __init__(
        self, costs: Sequence[Matrix], micro_batches: int, cutoff_s: float
    ) -> None:
        self.costs = costs
        self.others = micro_batches - 1
        self.cutoff_s = cutoff_s
        self.best: Slicing | None = None
        self.trials = math.inf if len(costs[0]) <= SMALL_TABLE else MAX_TRIALS

    def least_sum(self, longest_s: float) -> Slicing | None:
        """Minimise the sum of stage times with no stage above a threshold."""
        first = self.costs[0][0]
        best = np.where(first <= longest_s, first, math.inf)
        choices: list[npt.NDArray[np.int64]] = []
        for cost in self.costs[1:]:
            total = best[:, None] + np.where(cost <= longest_s, cost, math.inf)
            choice = total.argmin(axis=0)
            best = np.take_along_axis(total, choice[None], axis=0)[0]
            choices.append(choice)
        found = _trace(self.costs, choices, float(best[-1]))
        if found is None:
            return None
        step_s = found.sum_s + self.others * found.longest_s
        if step_s < self.cutoff_s:
            self.cutoff_s = step_s
            self.best = Slicing(
                value=step_s,
                sum_s=found.sum_s,
                longest_s=found.longest_s,
                cuts=found.cuts,
            )
        return found

    def between(self, low: Slicing, high: Slicing) -> None:
        """Search the thresholds above ``low`` and below ``high``."""
        levels = self._levels(low.longest_s, high)
        ranges = [(0, len(levels), low.sum_s, high.sum_s)]
        while ranges and self.trials > 0:
            start, stop, low_sum_s, high_sum_s = ranges.pop()
            if start >= stop or high_sum_s >= low_sum_s:
                continue
            if high_sum_s + self.others * levels[start] >= self.cutoff_s:
                continue
            middle = (start + stop) // 2
            self.trials -= 1
            found = self.least_sum(float(levels[middle]))
            sum_s = low_sum_s if found is None else found.sum_s
            ranges.append((middle + 1, stop, sum_s, high_sum_s))
            ranges.append((start, middle, low_sum_s, sum_s))

    def _levels(self, above_s: float, high: Slicing) -> Matrix:
        """Return the stage times that could be the longest of a better slicing."""
        below_s = high.longest_s
        if self.others:
            below_s = min(below_s, (self.cutoff_s - high.sum_s) / self.others)
        different = {id(cost): cost for cost in self.costs}.values()
        return np.unique(
            np.concatenate([c[(c > above_s) & (c < below_s)] for c in different])
        )


def _trace(
    costs: Sequence[Matrix], choices: Sequence[npt.NDArray[np.int64]], value: float
) -> Slicing | None:
    """Follow the choices back from the end."""
    if not math.isfinite(value):
        return None
    cuts = [len(costs[0]) - 1]
    for choice in reversed(choices):
        cuts.append(int(choice[cuts[-1]]))
    cuts.append(0)
    cuts.reverse()
    spent = [
        float(cost[a, b]) for cost, a, b in zip(costs, cuts, cuts[1:], strict=False)
    ]
    return Slicing(
        value=value, sum_s=sum(spent), longest_s=max(spent), cuts=tuple(cuts)
    )
