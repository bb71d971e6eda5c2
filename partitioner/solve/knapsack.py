"""Chooses the blocks of one stage to recompute: the least time that frees enough."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Part", "least_recompute"]

MAX_NODES = 4_000
"""Branches looked at per stage before the best choice so far is taken."""
MAX_PEAKS = 48
"""Different peaks that are tried; of more, evenly spread ones and the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The units of one activation-checkpoint block that are on one stage."""

    forward_s: float
    gain_bytes: float
    """Freed by recomputing it, over all micro-batches in flight."""
    peak_bytes: float
    """Brought back while it is recomputed."""

    def beside(self, held_bytes: float) -> Part:
        """Return the part with what it brings back beyond what a backward holds."""
        return replace(self, peak_bytes=max(0.0, self.peak_bytes - held_bytes))


Kind = tuple[float, float, list[int]]
"""(forward_s, gain_bytes, parts) of parts that are equal in both."""


class _Picked(NamedTuple):
    """How many parts of each kind are taken, the last kind first."""

    kind: int
    taken: int
    earlier: _Picked | None


class _Branch(NamedTuple):
    """A partial choice: kinds below ``kind`` are decided."""

    kind: int
    need: float
    spent_s: float
    picked: _Picked | None


def least_recompute(parts: Sequence[Part], excess_bytes: float) -> list[int] | None:
    """Choose parts such that what they free, less the largest peak, covers an excess.

    Exact up to `MAX_NODES` branches and `MAX_PEAKS` peaks; beyond that, feasible.

    Args:
        parts: What can be recomputed.
        excess_bytes: Bytes above the limit if nothing is recomputed.

    Returns:
        Indices of the chosen parts, or None if no choice frees enough.
    """
    if excess_bytes <= 0:
        return []
    best: list[int] | None = None
    best_s = math.inf
    nodes = MAX_NODES
    for peak in _peaks(parts):
        kinds = _kinds(parts, peak)
        # However few nodes are left, one greedy descent finds whether any choice fits.
        found = _cover(kinds, excess_bytes + peak, best_s, max(nodes, len(kinds) + 1))
        nodes -= found.nodes
        if found.chosen is not None:
            best, best_s = found.chosen, found.spent_s
    return best


def _peaks(parts: Sequence[Part]) -> list[float]:
    peaks = sorted({part.peak_bytes for part in parts if part.gain_bytes > 0})
    step = max(1, math.ceil(len(peaks) / MAX_PEAKS))
    return peaks[::-1][::step][::-1]


def _kinds(parts: Sequence[Part], peak: float) -> list[Kind]:
    """Collect the useful parts below a peak by kind, the best per byte first."""
    kinds: dict[tuple[float, float], list[int]] = {}
    for index, part in enumerate(parts):
        if part.gain_bytes > 0 and part.peak_bytes <= peak:
            kinds.setdefault((part.forward_s, part.gain_bytes), []).append(index)
    return sorted(
        ((seconds, gain, chosen) for (seconds, gain), chosen in kinds.items()),
        key=lambda kind: (kind[0] / kind[1], -kind[1], kind[2]),
    )


class _Found(NamedTuple):
    chosen: list[int] | None
    spent_s: float
    nodes: int


def _cover(kinds: list[Kind], need: float, below_s: float, limit: int) -> _Found:
    """Find the least time below a limit whose gains reach a need (branch and bound)."""
    best: _Branch | None = None
    nodes = 0
    totals = _Totals(kinds)
    stack = [_Branch(0, need, 0.0, None)]
    while stack and nodes <= limit:
        branch = stack.pop()
        if branch.spent_s >= below_s:
            continue
        if branch.need <= 0:
            best, below_s = branch, branch.spent_s
            continue
        nodes += 1
        if branch.spent_s + totals.fractional_s(branch) < below_s:
            stack.extend(_children(kinds, branch))
    if best is None:
        return _Found(None, below_s, nodes)
    return _Found(_indices(kinds, best.picked), below_s, nodes)


def _children(kinds: list[Kind], branch: _Branch) -> Iterator[_Branch]:
    """Yield the choices for the next kind; the most parts last, to be tried first."""
    seconds, gain, parts = kinds[branch.kind]
    for count in range(min(len(parts), math.ceil(branch.need / gain)) + 1):
        yield _Branch(
            branch.kind + 1,
            branch.need - count * gain,
            branch.spent_s + count * seconds,
            _Picked(branch.kind, count, branch.picked),
        )


class _Totals:
    """Running sums over the kinds, for the bound of a branch."""

    def __init__(self, kinds: list[Kind]) -> None:
        self.kinds = kinds
        self.gain = [0.0, *accumulate(gain * len(parts) for _, gain, parts in kinds)]
        self.spent_s = [0.0, *accumulate(s * len(parts) for s, _, parts in kinds)]

    def fractional_s(self, branch: _Branch) -> float:
        """Return the least further time if the last part may be taken in a fraction."""
        start = branch.kind
        reach = self.gain[start] + branch.need
        last = bisect_left(self.gain, reach, lo=start + 1) - 1
        if last >= len(self.kinds):
            return math.inf
        seconds, gain, _ = self.kinds[last]
        rest = reach - self.gain[last]
        return self.spent_s[last] - self.spent_s[start] + seconds * rest / gain


def _indices(kinds: list[Kind], picked: _Picked | None) -> list[int]:
    chosen: list[int] = []
    while picked is not None:
        chosen += kinds[picked.kind][2][: picked.taken]
        picked = picked.earlier
    return chosen
