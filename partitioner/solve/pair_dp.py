"""Slices one order for ranks that hold two stages each, the outermost pair first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.order_dp import Slicing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = ["PairCosts", "least_weighted_pairs"]

THRESHOLDS = 6
"""Limits on the longest rank time that are tried above the least one."""
WIDEST = 0.3
"""The largest of them, as a share above the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCosts:
    """Costs of the intervals of one order as stages of ranks that hold two.

    Sequences have one matrix per stage, ``C[i, j]`` for the interval i to j, infinite
    where it is not allowed; rank r of S holds the stages r and 2S - 1 - r.
    """

    time_s: Sequence[Floats]
    memory_bytes: Sequence[Floats]
    limits: Sequence[float]
    """Memory of each rank; infinite: no limit."""


def least_weighted_pairs(
    costs: PairCosts, weights: tuple[float, float], *, cutoff: float = math.inf
) -> Slicing | None:
    """Minimise a weighted sum of the longest and of all rank times over slicings.

    ``G[r][i, j]``, the best of ranks r and up on the interval i to j, is the least over
    ``i <= a <= b <= j`` of the pair (i to a, b to j) on rank r with ``G[r + 1][a, b]``.
    First for the longest rank time, then for the sum under limits on the longest.

    Args:
        costs: Of one table of m + 1 positions; time and memory grow as ``S m ** 4``.
        weights: See ``Problem.weights``.
        cutoff: Slicings of this value or more are of no interest.

    Returns:
        The best slicing found below the cutoff, or None.
    """
    shortest = _Nested(costs, math.inf, longest=True).slicing(weights)
    if shortest is None:
        return None
    found = [shortest]
    if weights[1] > 0:
        for share in np.linspace(0.0, WIDEST, THRESHOLDS):
            limit_s = shortest.longest_s * (1 + float(share) + 1e-12)
            other = _Nested(costs, limit_s, longest=False).slicing(weights)
            found += [other] if other is not None else []
    best = min(found, key=lambda slicing: slicing.value)
    return best if best.value < cutoff else None


class _Nested:
    """One dynamic program over nested pairs, from the innermost rank outwards."""

    def __init__(self, costs: PairCosts, limit_s: float, *, longest: bool) -> None:
        self.costs = costs
        self.limit_s = limit_s
        self.longest = longest
        self.ranks = len(costs.limits)
        self.choices: list[npt.NDArray[np.int64]] = []
        size = len(costs.time_s[0])
        # Inside the innermost pair nothing is left: it must be an empty interval.
        best = np.where(np.eye(size, dtype=np.bool_), 0.0, math.inf)
        for rank in reversed(range(self.ranks)):
            best = self._outwards(rank, best)
        self.best = best

    def _outwards(self, rank: int, inner: Floats) -> Floats:
        """Return the best of a rank and those inside it, shape (m + 1, m + 1)."""
        costs, partner = self.costs, 2 * self.ranks - 1 - rank
        right_s = costs.time_s[partner]
        right_bytes = costs.memory_bytes[partner]
        size = len(inner)
        best = np.full((size, size), math.inf)
        choice = np.zeros((size, size), dtype=np.int64)
        starts = range(size) if rank else range(1)
        for start in starts:
            stops = np.flatnonzero(np.isfinite(costs.time_s[rank][start]))
            if not len(stops):
                continue
            # axes: a (end of the left stage), b (start of the right), j (its end)
            pair_s = costs.time_s[rank][start, stops][:, None, None] + right_s
            held = costs.memory_bytes[rank][start, stops][:, None, None] + right_bytes
            pair_s[(held > costs.limits[rank]) | (pair_s > self.limit_s)] = math.inf
            inside = inner[stops][:, :, None]
            total = np.maximum(pair_s, inside) if self.longest else pair_s + inside
            flat = total.reshape(-1, size)
            index = flat.argmin(axis=0)
            best[start] = np.take_along_axis(flat, index[None], axis=0)[0]
            choice[start] = stops[index // size] * size + index % size
        self.choices.insert(0, choice)
        return best

    def slicing(self, weights: tuple[float, float]) -> Slicing | None:
        """Follow the choices from the outermost pair inwards."""
        size = len(self.best)
        start, stop = 0, size - 1
        if not math.isfinite(self.best[start, stop]):
            return None
        left, right = [start], [stop]
        for choice in self.choices:
            start, stop = divmod(int(choice[start, stop]), size)
            left.append(start)
            right.append(stop)
        cuts = [*left, *right[-2::-1]]
        spent = [
            float(cost[a, b])
            for cost, a, b in zip(self.costs.time_s, cuts, cuts[1:], strict=False)
        ]
        times = [spent[r] + spent[-1 - r] for r in range(self.ranks)]
        return Slicing(
            value=weights[0] * max(times) + weights[1] * sum(times),
            sum_s=sum(times),
            longest_s=max(times),
            cuts=tuple(cuts),
        )
