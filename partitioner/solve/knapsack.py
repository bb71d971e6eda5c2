"""Chooses the blocks of one stage to recompute: the least time that frees enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Part", "least_recompute"]

MAX_NODES = 20_000
"""Branches looked at per stage before the best choice so far is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The units of one activation-checkpoint block that are on one stage."""

    forward_s: float
    gain_bytes: float
    """Freed by recomputing it, over all micro-batches in flight."""
    peak_bytes: float
    """Brought back while it is recomputed."""


@dataclass(slots=True)
class _Cover:
    """Branch and bound for the least time whose gains reach a need."""

    kinds: list[tuple[float, float, list[int]]]
    """(forward_s, gain_bytes, parts) of equal parts, the best per byte first."""
    best_s: float
    best: list[int] | None = None
    nodes: int = 0

    def run(self, index: int, need: float, spent_s: float, chosen: list[int]) -> None:
        if spent_s >= self.best_s:
            return
        if need <= 0:
            self.best_s, self.best = spent_s, list(chosen)
            return
        self.nodes += 1
        if self.nodes > MAX_NODES or spent_s + self._least(index, need) >= self.best_s:
            return
        forward_s, gain, parts = self.kinds[index]
        for count in range(min(len(parts), math.ceil(need / gain)), -1, -1):
            self.run(
                index + 1,
                need - count * gain,
                spent_s + count * forward_s,
                chosen + parts[:count],
            )

    def _least(self, index: int, need: float) -> float:
        """Return the time if the last part could be taken in a fraction."""
        spent_s = 0.0
        for forward_s, gain, parts in self.kinds[index:]:
            if gain * len(parts) >= need:
                return spent_s + forward_s * need / gain
            spent_s += forward_s * len(parts)
            need -= gain * len(parts)
        return math.inf


def least_recompute(parts: Sequence[Part], excess_bytes: float) -> list[int] | None:
    """Choose parts such that what they free, less the largest peak, covers an excess.

    Exact up to `MAX_NODES` branches per possible peak; beyond that, feasible.

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
    for peak in sorted({part.peak_bytes for part in parts if part.gain_bytes > 0}):
        kinds: dict[tuple[float, float], list[int]] = {}
        for index, part in enumerate(parts):
            if part.gain_bytes > 0 and part.peak_bytes <= peak:
                kinds.setdefault((part.forward_s, part.gain_bytes), []).append(index)
        ranked = sorted(
            ((s, gain, chosen) for (s, gain), chosen in kinds.items()),
            key=lambda kind: (kind[0] / kind[1], -kind[1], kind[2]),
        )
        cover = _Cover(kinds=ranked, best_s=best_s)
        cover.run(0, excess_bytes + peak, 0.0, [])
        if cover.best is not None:
            best, best_s = cover.best, cover.best_s
    return best
