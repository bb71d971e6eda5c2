"""Finds the best chain of cuts where every cut has a price of its own on each side.

The chain may only use nested cuts, and only those short stages that a better plan could
have, so that a sparse table holds tens of thousands of cuts.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]
    Ints = npt.NDArray[np.int64]

__all__ = ["Chains", "Cuts", "Found"]

MOST_PAIRS = 40_000_000
"""Stages (pairs of cuts), each time that it may be used, in one table."""
ROWS = 512
"""Cuts whose stages are listed at once."""
FINE = 2e-4
"""Relative width of a range of stage times that is not split further."""
SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Sets of groups that may lie before a cut; subsets come first, all groups last.

    A stage from cut i to cut j takes ``ends_s[b, j] - starts_s[a, i]``, a and b being
    the rows of its boundaries; all stages of a plan together take ``total_s`` and twice
    ``cut_s`` of every cut inside. All stages before cut j take ``ends_s[b, j]`` at
    least, all behind cut i the last of ``ends_s`` less ``starts_s[a, i]``.
    """

    held: Flags
    """Shape (cuts, groups)."""
    starts_s: Floats
    """Shape (rows, cuts), as the next two."""
    ends_s: Floats
    cut_s: Floats
    row_of: tuple[int, ...]
    """Row of the boundary before each stage, and of the end."""
    total_s: float
    earliest: Ints
    """First stage of each group."""
    latest: Ints
    """Last stage of each group."""
    weighted: Ints
    """How many groups with parameters of their own lie before each cut."""
    weightless_s: float
    """Added to the cuts for each stage without one; infinite: every stage has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best chain and a bound on all."""

    chain: tuple[int, ...] | None
    """Cuts, the empty and the full one included; None if none is below the cutoff."""
    bound_s: float


class Chains:
    """All chains of some cuts with a limit on the stage time.

    Args:
        cuts: What to choose from.
        longest_s: Stage times above this are of no interest.
        deadline: Value of ``time.monotonic()`` after which listing is given up.
    """

    def __init__(self, cuts: Cuts, longest_s: float, deadline: float) -> None:
        self.cuts = cuts
        self.stages = len(cuts.row_of) - 1
        self.deadline = deadline
        longest_s *= 1 + SLACK
        self.usable = self._usable(longest_s)
        self.complete = False
        listed = self._pairs(longest_s)
        if listed is not None:
            self.before, self.after = listed
            self.spent_s = {
                (a, b): cuts.ends_s[b, self.after] - cuts.starts_s[a, self.before]
                for a, b in set(pairwise(cuts.row_of))
            }
            bare = cuts.weighted[self.after] == cuts.weighted[self.before]
            self.extra_s = np.where(bare, cuts.weightless_s, 0.0)
            self.steps = [self._step(s) for s in range(self.stages)]
            tables = len(self.before) * (len(self.spent_s) - 1)
            self.complete = sum(map(len, self.steps)) + tables <= MOST_PAIRS

    def _usable(self, longest_s: float) -> Flags:
        """Return which cuts may come after each number of stages, with room for all."""
        cuts, stages = self.cuts, self.stages
        usable = np.zeros((stages + 1, len(cuts.held)), dtype=np.bool_)
        usable[0, 0] = usable[-1, -1] = True
        first_s, last_s = cuts.starts_s[0, 0], cuts.ends_s[0, -1]
        for s, row in enumerate(cuts.row_of[1:-1], start=1):
            usable[s] = cuts.ends_s[row] - first_s <= s * longest_s
            usable[s] &= last_s - cuts.starts_s[row] <= (stages - s) * longest_s
            usable[s] &= cuts.held[:, cuts.latest < s].all(axis=1)
            usable[s] &= ~cuts.held[:, cuts.earliest >= s].any(axis=1)
        return usable

    def _pairs(self, longest_s: float) -> tuple[Ints, Ints] | None:
        """List the nested pairs within the limit, sorted by the later cut."""
        cuts = self.cuts
        any_use = self.usable.any(axis=0)
        chosen = np.flatnonzero(any_use)
        packed = _packed(cuts.held)
        starts_s, ends_s = cuts.starts_s.max(axis=0), cuts.ends_s.min(axis=0)
        high_s = np.maximum.accumulate(starts_s[chosen])
        found: list[tuple[Ints, Ints]] = []
        count = 0
        for start in range(0, len(chosen), ROWS):
            if time.monotonic() > self.deadline or count > MOST_PAIRS:
                return None
            later = chosen[start : start + ROWS]
            least_s = ends_s[later].min() - longest_s
            earlier = chosen[int(np.searchsorted(high_s, least_s)) : start + ROWS]
            spent_s = ends_s[later][:, None] - starts_s[earlier][None, :]
            fits = spent_s <= longest_s
            if math.isinf(cuts.weightless_s):
                fits &= cuts.weighted[later][:, None] > cuts.weighted[earlier][None, :]
            rows, columns = np.nonzero(fits)
            rows, columns = _nested(packed, later, earlier, rows, columns)
            found.append((earlier[columns], later[rows]))
            count += len(rows)
        before = np.concatenate([b for b, _ in found])
        after = np.concatenate([a for _, a in found])
        ranked = np.argsort(after, kind="stable")
        return before[ranked], after[ranked]

    def _step(self, stage: int) -> Ints:
        """Return the pairs that may be a stage."""
        here = self.usable[stage][self.before] & self.usable[stage + 1][self.after]
        return np.flatnonzero(here)

    def best(
        self, weights: tuple[float, float], *, cutoff: float, close: float
    ) -> Found:
        """Minimise the weighted sum of the longest and of all stage times.

        The least sum only falls as the limit on the longest stage rises; so a range of
        limits has a value of at least its least limit with the sum at its greatest.
        Ranges are split, the least promising last (Zheng et al., Alpa, OSDI 2022,
        section 5.2, looks at every limit).

        Args:
            weights: Of the longest stage time and of the sum.
            cutoff: Chains of this value or more are of no interest.
            close: Relative distance to the best at which the search may stop.
        """
        levels = np.unique(np.concatenate(list(self.spent_s.values())))
        levels = np.concatenate([[0.0], levels]) if len(levels) else np.zeros(1)
        return _Halving(self, weights, cutoff, levels).run(close)

    def least_cut_s(self, longest_s: float) -> tuple[float, tuple[int, ...] | None]:
        """Return the least sum of cuts with no stage above a limit, and the chain."""
        best_s = np.full(len(self.cuts.held), math.inf)
        best_s[0] = 0.0
        fits = {rows: spent_s <= longest_s for rows, spent_s in self.spent_s.items()}
        came: list[tuple[Ints, Floats]] = []
        for step, rows in zip(self.steps, pairwise(self.cuts.row_of), strict=True):
            pairs = step[fits[rows][step]]
            if not len(pairs):
                return math.inf, None
            after = self.after[pairs]
            firsts = np.flatnonzero(np.r_[True, after[1:] != after[:-1]])
            reached_s = best_s[self.before[pairs]] + self.extra_s[pairs]
            least_s = np.minimum.reduceat(reached_s, firsts)
            best_s = np.full(len(best_s), math.inf)
            ends = after[firsts]
            best_s[ends] = least_s + self.cuts.cut_s[rows[1], ends]
            came.append((pairs, reached_s))
        if not math.isfinite(best_s[-1]):
            return math.inf, None
        return float(best_s[-1]), self._trace(came)

    def _trace(self, came: Sequence[tuple[Ints, Floats]]) -> tuple[int, ...]:
        chain = [len(self.cuts.held) - 1]
        for pairs, reached_s in reversed(came):
            after = self.after[pairs]
            low, high = np.searchsorted(after, [chain[-1], chain[-1] + 1])
            at = low + int(reached_s[low:high].argmin())
            chain.append(int(self.before[pairs[at]]))
        return tuple(reversed(chain))


@dataclass(order=True, slots=True)
class _Range:
    value: float
    low: int
    """Last limit that is out of reach or done."""
    high: int
    cut_s: float
    """Least sum of cuts at the high limit."""


class _Halving:
    """Splits ranges of limits on the stage time, the most promising first."""

    def __init__(
        self,
        chains: Chains,
        weights: tuple[float, float],
        cutoff: float,
        levels: Floats,
    ) -> None:
        self.chains, self.levels = chains, levels
        self.longest_weight, self.sum_weight = weights
        self.least = cutoff
        self.chain: tuple[int, ...] | None = None
        self.ranges: list[_Range] = []

    def run(self, close: float) -> Found:
        top = len(self.levels) - 1
        self._push(0, top, self._least(top))
        bound_s = self.least
        while self.ranges:
            best = heapq.heappop(self.ranges)
            bound_s = best.value
            if best.value >= self.least * (1 - close):
                return Found(chain=self.chain, bound_s=min(best.value, self.least))
            if self._is_fine(best) or time.monotonic() > self.chains.deadline:
                return Found(chain=self.chain, bound_s=bound_s)
            middle = (best.low + best.high) // 2
            self._push(best.low, middle, self._least(middle))
            self._push(middle, best.high, best.cut_s)
        return Found(chain=self.chain, bound_s=self.least)

    def _is_fine(self, part: _Range) -> bool:
        if part.high - part.low <= 1:
            return True
        return bool(self.levels[part.low] * (1 + FINE) >= self.levels[part.high])

    def _least(self, level: int) -> float:
        """Return the least sum of cuts at a limit; keep the chain if it is the best."""
        cut_s, chain = self.chains.least_cut_s(float(self.levels[level]))
        if chain is not None:
            cuts = self.chains.cuts
            starts_s = cuts.starts_s[cuts.row_of[:-1], chain[:-1]]
            ends_s = cuts.ends_s[cuts.row_of[1:], chain[1:]]
            longest_s = float((ends_s - starts_s).max())
            value = self._value(longest_s, cut_s)
            if value < self.least:
                self.least, self.chain = value, chain
        return cut_s

    def _push(self, low: int, high: int, cut_s: float) -> None:
        if low >= high or not math.isfinite(cut_s):
            return
        value = self._value(float(self.levels[low + 1]), cut_s)
        if value < self.least:
            heapq.heappush(
                self.ranges, _Range(value=value, low=low, high=high, cut_s=cut_s)
            )

    def _value(self, longest_s: float, cut_s: float) -> float:
        sum_s = self.chains.cuts.total_s + 2 * cut_s
        longest_s = max(longest_s, sum_s / self.chains.stages)
        return self.longest_weight * longest_s + self.sum_weight * sum_s


def _packed(held: Flags) -> npt.NDArray[np.uint64]:
    """Pack rows of flags into words of 64."""
    padded = np.pad(held, ((0, 0), (0, -held.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)


def _nested(
    packed: npt.NDArray[np.uint64],
    later: Ints,
    earlier: Ints,
    rows: Ints,
    columns: Ints,
) -> tuple[Ints, Ints]:
    """Keep the pairs whose earlier cut holds nothing that the later does not."""
    for word in range(packed.shape[1]):
        inside, around = packed[earlier, word], packed[later, word]
        if not (inside.any() and (~around).any()):
            continue
        if not (inside[:, None] & ~np.bitwise_and.reduce(around)).any():
            continue
        keep = (inside[columns] & ~around[rows]) == 0
        rows, columns = rows[keep], columns[keep]
    return rows, columns
