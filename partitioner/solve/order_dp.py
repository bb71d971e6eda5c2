"""Slices one order into stages at the least cost, by dynamic programming."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Matrix = npt.NDArray[np.float64]

__all__ = ["Slicing", "least_bottleneck", "least_weighted", "prove_weighted"]

MAX_TRIALS = 80
"""Thresholds tried on a large table; small tables are searched to the end."""
SMALL_TABLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """Where to cut: stage s is the interval ``cuts[s]`` to ``cuts[s + 1]``."""

    value: float
    """The weighted sum, or the largest cost where that is what was minimised."""
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


def least_weighted(
    costs: Sequence[Matrix], weights: tuple[float, float], *, cutoff: float = math.inf
) -> Slicing | None:
    """Minimise ``longest_weight * max(t) + sum_weight * sum(t)`` over slicings.

    For a threshold on the longest stage, the least sum is a shortest path; thresholds
    are searched by halving (Zheng et al., Alpa, OSDI 2022, section 5.2, enumerates
    them). Exact for tables of up to `SMALL_TABLE` intervals; for larger ones, at most
    `MAX_TRIALS` thresholds are tried.

    Args:
        costs: As for `least_bottleneck`, in seconds.
        weights: Of the longest stage time and of the sum of all, see
            ``Problem.weights``.
        cutoff: Slicings of this value or more are of no interest.

    Returns:
        The best slicing below the cutoff, or None.
    """
    small = len(costs[0]) <= SMALL_TABLE
    search = _Search(costs, weights, cutoff)
    search.run(lambda trials: not small and trials >= MAX_TRIALS)
    return search.best


def prove_weighted(
    costs: Sequence[Matrix],
    weights: tuple[float, float],
    *,
    cutoff: float,
    deadline: float,
) -> tuple[Slicing | None, float]:
    """As `least_weighted`, to the end unless the deadline comes first.

    Returns:
        The best slicing below the cutoff, or None; and a bound on all slicings, which
        is the best or the cutoff if the search came to its end.
    """
    search = _Search(costs, weights, cutoff)
    search.run(lambda _: time.monotonic() > deadline)
    return search.best, search.bound


class _Search:
    """Halves the range of thresholds until none can hold a better slicing."""

    def __init__(
        self, costs: Sequence[Matrix], weights: tuple[float, float], cutoff: float
    ) -> None:
        self.costs = costs
        self.longest_weight, self.sum_weight = weights
        self.cutoff = cutoff
        self.best: Slicing | None = None
        self.bound = cutoff

    def run(self, stop: Callable[[int], bool]) -> None:
        """Search, until told to stop after some number of thresholds."""
        shortest = least_bottleneck(self.costs)
        if shortest is None:
            return
        low = self.least_sum(shortest.longest_s)
        high = self.least_sum(math.inf) if self.sum_weight > 0 else None
        self.bound = self.cutoff
        if low is not None and high is not None:
            left = self.between(low, high, stop)
            self.bound = min(self.cutoff, left)

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
        value = self._value(found.sum_s, found.longest_s)
        if value < self.cutoff:
            self.cutoff = value
            self.best = Slicing(
                value=value,
                sum_s=found.sum_s,
                longest_s=found.longest_s,
                cuts=found.cuts,
            )
        return found

    def _value(self, sum_s: float, longest_s: float) -> float:
        return self.sum_weight * sum_s + self.longest_weight * longest_s

    def between(
        self, low: Slicing, high: Slicing, stop: Callable[[int], bool]
    ) -> float:
        """Search the thresholds above ``low`` and below ``high``.

        Returns:
            A bound on the slicings at thresholds that were left out.
        """
        levels = self._levels(low.longest_s, high)
        ranges = [(0, len(levels), low.sum_s, high.sum_s)]
        trials = 0
        while ranges and not stop(trials):
            start, end, low_sum_s, high_sum_s = ranges.pop()
            if start >= end or high_sum_s >= low_sum_s:
                continue
            if self._value(high_sum_s, float(levels[start])) >= self.cutoff:
                continue
            middle = (start + end) // 2
            trials += 1
            found = self.least_sum(float(levels[middle]))
            sum_s = low_sum_s if found is None else found.sum_s
            ranges.append((middle + 1, end, sum_s, high_sum_s))
            ranges.append((start, middle, low_sum_s, sum_s))
        left = (
            self._value(high_sum_s, float(levels[start]))
            for start, end, low_sum_s, high_sum_s in ranges
            if start < end and high_sum_s < low_sum_s
        )
        return min(left, default=math.inf)

    def _levels(self, above_s: float, high: Slicing) -> Matrix:
        """Return the stage times that could be the longest of a better slicing."""
        below_s = high.longest_s
        if self.longest_weight:
            left = self.cutoff - self.sum_weight * high.sum_s
            below_s = min(below_s, left / self.longest_weight)
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
