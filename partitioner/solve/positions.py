"""Chooses where an order may be cut: cheap places, spread over the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups

__all__ = ["choose_bounds", "crossing", "typical"]

Floats: TypeAlias = "npt.NDArray[np.float64]"


def crossing(
    groups: Groups, order: Sequence[int]
) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return seconds and bytes over each cut of an order, and each group's place.

    Seconds have a row for each of ``Problem.distances``.

    Args:
        groups: What the order lays out.
        order: Groups in a topological order.

    Returns:
        Arrays of shape (distances, groups + 1), (groups + 1,) and (groups,).
    """
    place = np.empty(len(order), dtype=np.int64)
    place[list(order)] = np.arange(len(order))
    distances = groups.problem.distances
    seconds = np.zeros((len(distances), len(order) + 1))
    size = np.zeros(len(order) + 1)
    for value in groups.values:
        first = place[value.producer] + 1
        last = max(place[reader] for reader in value.consumers) + 1
        if last <= first:  # read before it is made: only where memory is shared
            continue
        for row, far in enumerate(distances):
            seconds[row, first] += value.crossing_s(far=far)
            seconds[row, last] -= value.crossing_s(far=far)
        size[first] += value.wire_bytes
        size[last] -= value.wire_bytes
    seconds = np.cumsum(seconds, axis=1).clip(0)
    seconds[:, [0, -1]] = 0.0
    return seconds, np.cumsum(size), place


def typical(groups: Groups, seconds: Floats) -> Floats:
    """Return what each cut costs at a boundary on average, from `crossing`'s rows."""
    problem = groups.problem
    if len(seconds) == 1:
        near: Floats = seconds[0]
        return near
    share = sum(problem.far) / len(problem.far)
    mean: Floats = seconds[0] + share * (seconds[1] - seconds[0])
    return mean


def choose_bounds(
    groups: Groups, order: Sequence[int], most: int
) -> npt.NDArray[np.int64]:
    """Choose the positions of an order where a stage may end.

    Args:
        groups: What the order lays out.
        order: Groups in a topological order.
        most: Keep all positions up to this number; above it, the cheapest cut of each
            of ``most`` buckets of equal work.

    Returns:
        Ascending positions, the first 0 and the last ``len(order)``.
    """
    count = len(order)
    if count <= most:
        return np.arange(count + 1)
    seconds, size, _ = crossing(groups, order)
    seconds = typical(groups, seconds)
    work_s = np.concatenate([[0.0], np.cumsum(groups.work_s[list(order)])])
    total_s = work_s[-1] or 1.0
    bucket = np.minimum((work_s / total_s * most).astype(np.int64), most - 1)
    ranked = np.lexsort((np.arange(count + 1), size, seconds, bucket))
    _, first = np.unique(bucket[ranked], return_index=True)
    return np.unique(np.concatenate([[0], ranked[first], [count]]))
