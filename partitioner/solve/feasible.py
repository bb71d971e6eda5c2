"""Decides how many stages can be had at all, pins and parameters given."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from partitioner.errors import InfeasibleError, OptionError, TooManyStagesError
from partitioner.solve.groups import condensed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.solve.groups import Groups
    from partitioner.solve.problem import Problem

__all__ = ["largest_stages", "pin_windows", "require_stages", "witness"]

Windows = tuple[list[int], list[int]]


def pin_windows(groups: Groups, stages: int) -> Windows:
    """Return the first and last stage that the pins leave to each group.

    Args:
        groups: The cycles condensed, pins not yet applied.
        stages: Number of stages, which negative pins count from.

    Raises:
        OptionError: A pin names no stage, or two pins contradict the data flow.
    """
    first = [0] * len(groups)
    last = [stages - 1] * len(groups)
    for unit, pin in _pins(groups.problem):
        stage = pin + (stages if pin < 0 else 0)
        if not 0 <= stage < stages:
            raise OptionError(
                f"{groups.problem.units[unit].name} is pinned to stage {pin}, but there"
                f" are only {stages} stages",
                hint="Pin to a stage from 0 to the number of stages less one.",
            )
        group = groups.group_of[unit]
        first[group] = max(first[group], stage)
        last[group] = min(last[group], stage)
    for before, after in groups.edges:  # sorted: every source is final when read
        first[after] = max(first[after], first[before])
    for before, after in reversed(groups.edges):
        last[before] = min(last[before], last[after])
    for group, (low, high) in enumerate(zip(first, last, strict=True)):
        if low > high:
            name = groups.problem.units[groups.members[group][0]].name
            raise OptionError(
                f"the pins contradict each other: {name} would have to be on stage"
                f" {low} or later and on stage {high} or earlier",
                hint="Data flows from earlier to later stages: pin accordingly.",
            )
    return first, last


def _pins(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield (unit, stage as it was given) of every pin."""
    for index, unit in enumerate(problem.units):
        if unit.pinned_stage is not None:
            yield index, unit.pinned_stage
    for constraint in problem.constraints:
        if constraint.kind == "pin":
            for part in constraint.parts:
                yield part[0], constraint.stage  # the others are in its group


def witness(groups: Groups, windows: Windows, stages: int) -> list[int] | None:
    """Find one stage per group such that each stage has a group with parameters.

    Gives every stage one of these, the one with the least room first (earliest
    deadline first, which is exact for unit jobs: Horn, 1974), in topological order
    among equals; the others follow their predecessors. Windows that grow along the
    edges make the exchange argument hold under precedence, too.

    Returns:
        Stage of each group, or None if there is no such assignment.
    """
    first, last = windows
    waiting = sorted(
        (first[group], group) for group, flag in enumerate(groups.weighted) if flag
    )
    ready: list[tuple[int, int]] = []
    chosen: dict[int, int] = {}
    position = 0
    for stage in range(stages):
        while position < len(waiting) and waiting[position][0] <= stage:
            group = waiting[position][1]
            heapq.heappush(ready, (last[group], group))
            position += 1
        while ready and ready[0][0] < stage:
            heapq.heappop(ready)
        if not ready:
            return None
        chosen[heapq.heappop(ready)[1]] = stage
    stage_of = [chosen.get(g, first[g]) for g in range(len(groups))]
    for before, after in groups.edges:
        stage_of[after] = max(stage_of[after], stage_of[before])
    return stage_of


def largest_stages(groups: Groups) -> int:
    """Return the largest number of stages that pins and parameters allow.

    Args:
        groups: The cycles condensed, pins not yet applied.

    Returns:
        The number; 0 if no stage can have a parameter of its own, or none trains.
    """
    if not any(unit.trainable for unit in groups.problem.units):
        return 0
    for stages in _downwards(groups):
        try:
            windows = pin_windows(groups, stages)
        except OptionError:
            continue
        if witness(groups, windows, stages) is not None:
            return stages
    return 0


def _downwards(groups: Groups) -> Iterator[int]:
    return iter(range(sum(groups.weighted), 0, -1))


def _require_equal(problem: Problem) -> None:
    for constraint in problem.constraints:
        count = len(constraint.parts)
        if constraint.kind == "equal" and count % problem.stages:
            raise InfeasibleError(
                f"{constraint.words}: {count} modules cannot be spread evenly over"
                f" {problem.stages} stages",
                hint=f"Use a number of stages that divides {count}.",
            )


def require_stages(problem: Problem) -> tuple[Groups, Sequence[int]]:
    """Return the groups and one assignment of them to the stages asked for.

    Raises:
        OptionError: ``stages`` is below one, or a pin is impossible.
        TooManyStagesError: There are more stages than the model can be cut into.
        InfeasibleError: The pins leave some stage without a parameter, or
            parts that are to be spread evenly cannot be.
    """
    groups = condensed(problem)
    stages = problem.stages
    _require_equal(problem)
    if not any(unit.trainable for unit in problem.units):
        raise TooManyStagesError(
            "the model has no parameter that requires grad",
            largest=0,
            hint="Nothing is trainable: set requires_grad on some parameter.",
        )
    weighted = sum(groups.weighted)
    largest = largest_stages(groups) if stages > weighted else None
    if largest is None:
        windows = pin_windows(groups, stages)
        found = witness(groups, windows, stages)
        if found is not None:
            return groups, found
        largest = largest_stages(groups)
    if 0 < largest < stages:
        raise TooManyStagesError(
            f"{stages} stages were asked for, but the model can be cut into at most"
            f" {largest}: every stage needs a parameter of its own"
            f" ({weighted} separable units have one)",
            largest=largest,
            hint=f"Use at most {largest} stages.",
        )
    raise InfeasibleError(
        f"the pins leave some of the {stages} stages without a parameter of their own",
        hint=f"Remove a pin, or use {largest} stages." if largest else "Remove a pin.",
    )
