"""Puts finer positions around the cuts of a slicing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.intervals import Intervals
from partitioner.solve.positions import crossing, typical

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["refined"]


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
    seconds = typical(table.groups, crossing(table.groups, order)[0])
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
