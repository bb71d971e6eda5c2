"""Bounds the objective from the work and the speeds alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

__all__ = ["least_objective", "longest_below"]


def least_objective(groups: Groups, longest_s: float) -> float:
    """Return a lower bound on the objective.

    With a limit L on the longest rank time, the sum of the rank times is least if the
    fastest ranks are full. That sum falls with L and is linear between the L at which
    one more of the fastest ranks holds everything, so these and the least L are tried.

    Args:
        groups: What is to be placed.
        longest_s: Lower bound on the longest rank time.
    """
    problem, total_s = groups.problem, float(groups.work_s.sum())
    longest_weight, sum_weight = problem.weights
    speeds = _rank_speeds(problem)
    levels = {longest_s}
    for count in range(1, len(speeds)):
        levels.add(max(longest_s, total_s / sum(speeds[:count])))
    return min(
        longest_weight * level + sum_weight * _least_sum_s(total_s, speeds, level)
        for level in levels
    )


def longest_below(groups: Groups, target_s: float) -> float:
    """Return the longest rank time that an objective below a target allows."""
    longest_weight, sum_weight = groups.problem.weights
    if not longest_weight:
        return target_s / sum_weight if sum_weight else math.inf
    least_s = float(groups.work_s.sum()) / _rank_speeds(groups.problem)[0]
    return (target_s - sum_weight * least_s) / longest_weight


def _rank_speeds(problem: Problem) -> list[float]:
    """Return the speeds of the ranks, the fastest first."""
    speeds = (problem.speed(stage) for stage in range(problem.ranks))
    return sorted(speeds, reverse=True)


def _least_sum_s(total_s: float, speeds: list[float], longest_s: float) -> float:
    spent_s = 0.0
    for speed in speeds:
        part_s = min(total_s, longest_s * speed)
        spent_s += part_s / speed
        total_s -= part_s
    return spent_s
