"""Lists every set of groups that may lie before a cut, and prices stages between them.

A set that holds, with a group, all that must come before it is an ideal of the order;
legal assignments are chains of ideals. Graphs of real models are narrow, so that there
are often few enough to look at all of them: the dynamic program is then exact
(Tarnawski et al., NeurIPS 2020, section 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.bounds import longest_below
from partitioner.solve.order_dp import prove_weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partitioner.solve.groups import Groups

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

__all__ = ["Exact", "Ideals", "cut_seconds", "list_ideals", "solve_by_ideals"]

MOST_IDEALS = 40_000
"""Possible cuts that are listed at most."""
MOST_ENDS = 3_200
"""Of these, at most so many may be ends of stages: the work grows with the square."""
MOST_CELLS = 200_000_000
"""Pairs of ends times stages that are looked at for one threshold."""

ROWS = 256
"""Ideals whose stages are priced at once."""
SLACK = 1e-9
"""Relative rounding that a limit on the stage time is forgiven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What looking at every possible cut found."""

    stage_of: tuple[int, ...] | None
    """Stage of each unit in the best assignment below the target, if there is one."""
    bound_s: float
    """Lower bound on the objectives below the target, else the target."""
    rule: str


def solve_by_ideals(groups: Groups, target_s: float, deadline: float) -> Exact | None:
    """Find the best assignment below a target, or prove that there is none.

    Args:
        groups: What is to be placed.
        target_s: Objective that is to be beaten.
        deadline: Value of ``time.monotonic()`` at which to stop, with a weaker bound.

    Returns:
        What was found; None if there are too many possible cuts, where memory limits
        the stages, or where ranks hold two.
    """
    problem = groups.problem
    if problem.limited or problem.ranks < problem.stages:
        return None
    held = list_ideals(groups, MOST_IDEALS)
    if held is None:
        return None
    ideals = Ideals(groups, held, longest_below(groups, target_s))
    cells = len(ideals) ** 2 * problem.stages
    if len(ideals) > MOST_ENDS or cells > MOST_CELLS:
        return None
    sliced, bound_s = prove_weighted(
        ideals.stage_costs(), problem.weights, cutoff=target_s, deadline=deadline
    )
    stage_of = None
    if sliced is not None:
        stage_of = groups.stage_of_units(ideals.stage_of_groups(sliced.cuts))
    return Exact(
        stage_of=stage_of,
        bound_s=bound_s * (1 - SLACK),
        rule=f"dynamic program over all {len(held)} possible cuts",
    )


def list_ideals(groups: Groups, most: int) -> Flags | None:
    """List the ideals of the groups' order, the smaller first.

    Args:
        groups: What is ordered by ``groups.edges``.
        most: Give up when there are more.

    Returns:
        Which groups each ideal holds, shape (ideals, groups); None if there are more.
    """
    count = len(groups)
    if count >= most:
        return None
    before = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in groups.edges:
        before[target] |= 1 << source
        after[source].append(target)
    first = tuple(group for group in range(count) if not before[group])
    layer: dict[int, tuple[int, ...]] = {0: first}
    found: list[int] = []
    while layer:
        found += layer
        larger: dict[int, tuple[int, ...]] = {}
        for ideal, addable in layer.items():
            for group in addable:
                grown = ideal | 1 << group
                if grown not in larger:
                    new = (h for h in after[group] if not before[h] & ~grown)
                    rest = (h for h in addable if h != group)
                    larger[grown] = (*rest, *new)
            if len(found) + len(larger) > most:
                return None
        layer = larger
    return _flags(found, count)


def _flags(ideals: Sequence[int], count: int) -> Flags:
    width = (count + 7) // 8
    packed = b"".join(ideal.to_bytes(width, "little") for ideal in ideals)
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(ideals), width)
    return np.unpackbits(rows, axis=1, count=count, bitorder="little").astype(np.bool_)


def cut_seconds(groups: Groups, held: Flags) -> Floats:
    """Return the time of the values that cross from each ideal to the rest.

    Returns:
        A row for each of ``Problem.distances``, shape (distances, ideals).
    """
    distances = groups.problem.distances
    cut_s = np.zeros((len(distances), len(held)))
    for value in groups.values:
        ends = held[:, [value.producer, *value.consumers]]
        crosses = ends.any(axis=1) & ~ends.all(axis=1)
        for row, far in enumerate(distances):
            cut_s[row] += value.crossing_s(far=far) * crosses
    return cut_s


class Ideals:
    """Stages of a problem without memory limits, as differences of two ideals.

    Args:
        groups: What is to be placed, on ranks of one stage each.
        held: The ideals, as `list_ideals` gives them.
        longest_s: Stage times above this are of no interest.
    """

    def __init__(self, groups: Groups, held: Flags, longest_s: float) -> None:
        self.groups = groups
        self.longest_s = longest_s * (1 + SLACK)
        work_s = held @ groups.work_s
        cut_s = cut_seconds(groups, held)
        useful = self._useful(work_s, cut_s)
        # By work, so that the ends of a short stage are neighbours.
        ranked = np.lexsort((held.sum(axis=1), work_s))
        ranked = ranked[useful[ranked]]
        self.held, self.work_s = held[ranked], work_s[ranked]
        self.cut_s = cut_s[:, ranked]

    def __len__(self) -> int:
        """Return how many ideals a stage may begin or end with."""
        return len(self.held)

    def _useful(self, work_s: Floats, cut_s: Floats) -> Flags:
        """Return which ideals leave both sides enough stages for work and cut."""
        problem = self.groups.problem
        speeds = [problem.speed(stage) for stage in range(problem.stages)]
        capacity = np.concatenate([[0.0], np.cumsum(speeds)])
        total_s = float(self.groups.work_s.sum())
        useful = np.zeros(len(work_s), dtype=np.bool_)
        cut_s = cut_s * min(speeds)  # the least of its share of a rank's time
        for stage, left in enumerate(capacity[1:-1], start=1):
            room_s = np.array([left, capacity[-1] - left]) * self.longest_s
            room_s += SLACK * total_s
            here_s = cut_s[int(problem.is_far(stage))]
            fits = work_s + here_s <= room_s[0]
            useful |= fits & (total_s - work_s + here_s <= room_s[1])
        useful[[0, -1]] = True
        return useful

    def stage_costs(self) -> list[Floats]:
        """Return, for each stage, the seconds of each pair (before, up to)."""
        problem = self.groups.problem
        communication_s: dict[tuple[bool, bool], Floats] = {}
        work_s = self.work_s[None, :] - self.work_s[:, None]
        nested = self._nested()
        by_kind: dict[object, Floats] = {}
        costs = []
        for stage in range(problem.stages):
            wrong = (self.groups.earliest > stage) | (self.groups.latest < stage)
            far = problem.is_far(stage), problem.is_far(stage + 1)
            key = (stage if wrong.any() else -1, problem.speed(stage), far)
            if far not in communication_s:
                communication_s[far] = self._communication_s(far)
            if key not in by_kind:
                cost = work_s / problem.speed(stage) + communication_s[far]
                allowed = nested & (cost <= self.longest_s)
                if wrong.any():
                    allowed &= self._equal(wrong)
                by_kind[key] = np.where(allowed, cost, math.inf)
            costs.append(by_kind[key])
        return costs

    def _counted(self, weights: npt.NDArray[np.int64] | Flags) -> Floats:
        """Return how many of some groups each difference holds."""
        counts: Floats = self.held.astype(np.float64) @ weights
        return counts[None, :] - counts[:, None]

    def _equal(self, weights: Flags) -> Flags:
        none: Flags = self._counted(weights) == 0
        return none

    def _nested(self) -> Flags:
        """Return which pairs are one inside the other, and make a legal stage."""
        rows = self.held.astype(np.float32)
        shared = rows @ rows.T
        nested: Flags = np.equal(shared, shared.diagonal()[:, None])
        nested &= self._counted(np.array(self.groups.weighted)) > 0
        for quota in self.groups.quotas:
            nested &= np.equal(self._counted(quota.counts), quota.each)
        return nested

    def _communication_s(self, far: tuple[bool, bool]) -> Floats:
        """Return the communication of each pair between near or far boundaries."""
        if self.groups.problem.transfer == "hops":
            before_s, after_s = (self.cut_s[int(end)] for end in far)
            around: Floats = before_s[:, None] + after_s[None, :]
            return around
        spent_s = np.full((len(self), len(self)), math.inf)
        same, none, whole, total_s = self._ends()
        reach_s = self.longest_s * max(map(self.groups.problem.speed, self._stages))
        for start in range(0, len(self), ROWS):
            rows = slice(start, start + ROWS)
            last_s = self.work_s[rows].max() + reach_s
            columns = slice(start, int(np.searchsorted(self.work_s, last_s, "right")))
            inside_s = same[rows] @ same[columns].T + none[rows] @ whole[columns].T
            spent_s[rows, columns] = (total_s - inside_s).clip(0)
        return spent_s

    @property
    def _stages(self) -> range:
        return range(self.groups.problem.stages)

    def _ends(self) -> tuple[Floats, Floats, Floats, float]:
        """Return factors whose products are the times that a difference does not pay.

        A stage pays for a value unless it holds none or all of its ends: unless the
        two ideals hold equally many (being nested, the same ones), or none and all.
        """
        same, none, whole = [], [], []
        total_s = 0.0
        for value in self.groups.values:
            ends = [value.producer, *value.consumers]
            count = self.held[:, ends].sum(axis=1)
            total_s += value.hop_s
            root = math.sqrt(value.hop_s)
            same += [root * (count == number) for number in range(len(ends) + 1)]
            none.append(root * (count == 0))
            whole.append(root * (count == len(ends)))
        empty = np.zeros((1, len(self)))
        stacked = [np.array([*rows, *empty]).T.copy() for rows in (same, none, whole)]
        return stacked[0], stacked[1], stacked[2], total_s

    def stage_of_groups(self, cuts: Sequence[int]) -> list[int]:
        """Return the stage of each group for a chain of ideals."""
        inside = self.held[list(cuts[1:])]
        return [int(stage) for stage in inside.argmax(axis=0)]
