"""Merges what no cut may separate, and what no best cut would separate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import networkx as nx

from partitioner.solve.feasible import pin_windows
from partitioner.solve.groups import build_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.solve.groups import Groups

__all__ = ["Joiner", "contract", "contract_dear", "merged"]


def contract(groups: Groups) -> Groups:
    """Merge groups that the pins put together, then groups that cost nothing.

    Args:
        groups: The cycles condensed, pins not yet applied.

    Returns:
        Fewer groups; some best assignment of the problem survives.
    """
    problem = groups.problem
    first, last = pin_windows(groups, problem.stages)
    label, extra = _pin_labels(groups, first, last)
    spread = (
        [first[group] for group in groups.group_of],
        [last[group] for group in groups.group_of],
    )
    label = [label[group] for group in groups.group_of]
    pinned = build_groups(problem, label, windows=spread, extra_edges=extra)
    if problem.transfer == "ends":  # what joining saves at one end, another may pay
        return pinned
    joined = Joiner(pinned).run()
    label = [joined[group] for group in pinned.group_of]
    return build_groups(problem, label, windows=spread, extra_edges=extra)


def _pin_labels(
    groups: Groups, first: list[int], last: list[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Give groups with one possible stage one label, and order it against the rest."""
    label = list(range(len(groups)))
    chief: dict[int, int] = {}  # stage: the first group that must be on it
    for group in range(len(groups)):
        if first[group] == last[group]:
            label[group] = chief.setdefault(first[group], group)
    extra: list[tuple[int, int]] = []
    for stage, group in chief.items():
        unit = groups.members[group][0]
        for other in _outermost(groups, first, last, stage):
            if label[other.group] == label[group]:
                continue
            pair = (unit, groups.members[other.group][0])
            extra.append(pair if other.later else pair[::-1])
    return label, extra


@dataclass(frozen=True, slots=True)
class _Outermost:
    group: int
    later: bool


def _outermost(
    groups: Groups, first: list[int], last: list[int], stage: int
) -> Iterator[_Outermost]:
    """Yield groups that cannot be before, or after, a stage.

    Only those without a like predecessor, or successor; the others follow by their
    own edges.
    """
    after = [low >= stage for low in first]
    before = [high <= stage for high in last]
    for source, target in groups.edges:
        after[target] = after[target] and first[source] < stage
        before[source] = before[source] and last[target] > stage
    for group in range(len(groups)):
        if after[group]:
            yield _Outermost(group, later=True)
        if before[group]:
            yield _Outermost(group, later=False)


@dataclass(slots=True)
class Joiner:
    """Joins a group that costs nothing to a neighbour when no cut can get dearer.

    Joining forwards (to the only predecessor) adds the group's own values to the
    boundaries between the two and takes away the values that only it reads; joining
    backwards (to the only successor) the other way round. It is done only if seconds
    and bytes both do not grow.
    """

    groups: Groups
    parent: list[int] = field(init=False)
    outputs: list[set[int]] = field(init=False)
    inputs: list[set[int]] = field(init=False)
    before: list[set[int]] = field(init=False)
    after: list[set[int]] = field(init=False)
    blocks: list[set[int]] = field(init=False)
    free: list[bool] = field(init=False)
    readers: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.groups
        count = len(groups)
        self.parent = list(range(count))
        self.outputs = [set() for _ in range(count)]
        self.inputs = [set() for _ in range(count)]
        self.before = [set() for _ in range(count)]
        self.after = [set() for _ in range(count)]
        self.readers = [set(value.consumers) for value in groups.values]
        for index, value in enumerate(groups.values):
            self.outputs[value.producer].add(index)
            for reader in value.consumers:
                self.inputs[reader].add(index)
        for source, target in groups.edges:
            self.after[source].add(target)
            self.before[target].add(source)
        units = groups.problem.units
        self.blocks = [{units[u].block for u in group} for group in groups.members]
        self.free = list(self._free())

    def _free(self) -> Iterator[bool]:
        groups, problem = self.groups, self.groups.problem
        tied = {unit for tie in problem.ties for unit in tie.units}
        for group, members in enumerate(groups.members):
            bytes_held = sum(
                problem.units[u].saved_bytes + problem.units[u].static_bytes
                for u in members
            )
            yield (
                groups.work_s[group] <= 0
                and not groups.weighted[group]
                and (bytes_held == 0 or not problem.limited)
                and tied.isdisjoint(members)
                and not any(quota.counts[group] for quota in groups.quotas)
                and groups.earliest[group] == 0
                and groups.latest[group] == problem.stages - 1
            )

    def run(self) -> list[int]:
        """Join until nothing changes; return the label of each group."""
        work = [group for group, free in enumerate(self.free) if free]
        while work:
            group = work.pop()
            if self.parent[group] != group:
                continue
            neighbour = self._neighbour(group)
            if neighbour is None:
                continue
            near = self.before[group] | self.after[group] | {neighbour}
            self._join(group, neighbour)
            work.extend(sorted(other for other in near if self.free[other]))
        return [self._root(group) for group in range(len(self.parent))]

    def _root(self, group: int) -> int:
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def _neighbour(self, group: int) -> int | None:
        """Return a neighbour that the group may join, or None."""
        if len(self.before[group]) == 1:
            (source,) = self.before[group]
            taken = {v for v in self.inputs[group] if self.readers[v] == {group}}
            if self._safe(group, source, added=self.outputs[group], taken=taken):
                return source
        if len(self.after[group]) == 1:
            (target,) = self.after[group]
            added = {v for v in self.inputs[group] if not self._reaches(v, target)}
            if self._safe(group, target, added=added, taken=self.outputs[group]):
                return target
        return None

    def _reaches(self, value: int, target: int) -> bool:
        """Whether a value crosses every boundary before a group anyway."""
        return target in self.readers[value]

    def _safe(
        self, group: int, neighbour: int, *, added: set[int], taken: set[int]
    ) -> bool:
        values = self.groups.values
        if self._spared_s(added, taken) < 0:
            return False
        if not self.groups.problem.limited:
            return True
        if sum(values[v].wire_bytes for v in added) > sum(
            values[v].wire_bytes for v in taken
        ):
            return False
        mine = self.blocks[group]
        return mine == {-1} or (len(mine) == 1 and mine == self.blocks[neighbour])

    def _spared_s(self, added: set[int], taken: set[int]) -> float:
        """Return by how much a boundary gets cheaper, at the least."""
        values = self.groups.values
        return min(
            sum(values[v].crossing_s(far=far) for v in taken)
            - sum(values[v].crossing_s(far=far) for v in added)
            for far in self.groups.problem.distances
        )

    def _join(self, group: int, into: int) -> None:
        self.parent[group] = into
        self.free[into] = self.free[into] and self.free[group]
        self.blocks[into] |= self.blocks[group]
        for side, back in ((self.before, self.after), (self.after, self.before)):
            for other in side[group]:
                back[other].discard(group)
                if other != into:
                    back[other].add(into)
                    side[into].add(other)
        self._hand_over(group, into)

    def _hand_over(self, group: int, into: int) -> None:
        """Let the values of a group be made and read by the one that it joins."""
        for value in self.inputs[group]:
            self.readers[value].discard(group)
            if value not in self.outputs[into]:
                self.readers[value].add(into)
                self.inputs[into].add(value)
            elif not self.readers[value]:  # it can no longer cross a boundary
                self.outputs[into].discard(value)
        for value in self.outputs[group]:
            self.readers[value].discard(into)
            self.inputs[into].discard(value)
            if self.readers[value]:
                self.outputs[into].add(value)


def contract_dear(groups: Groups, target_s: float) -> Groups:
    """Merge both ends of every value that no assignment below a target can cut.

    A cut value costs ``hop`` seconds, those of the cheaper kind of boundary, on the
    stage before and on the stage after the cut. So a cut makes the sum of stage times
    at least ``work + 2 hop`` and the longest at least a share of it, and ``hop``
    plus the work of the value's producer.

    Args:
        groups: The groups to merge further.
        target_s: Objective that is to be beaten.

    Returns:
        Groups that keep every assignment with an objective of at most ``target_s``.
    """
    problem = groups.problem
    if problem.ranks < problem.stages:  # one boundary lies inside a rank: it is free
        return groups
    joined = nx.utils.UnionFind(range(len(groups)))
    dear = False
    for value, least in zip(groups.values, _least_cuts(groups), strict=True):
        if least > target_s * (1 + 1e-9):
            dear = True
            joined.union(value.producer, *value.consumers)
    if not dear:
        return groups
    return merged(groups, [joined[group] for group in range(len(groups))])


def merged(groups: Groups, label: Sequence[int]) -> Groups:
    """Merge groups of equal label; their order, and what the pins left, are kept."""
    windows = (
        [int(groups.earliest[group]) for group in groups.group_of],
        [int(groups.latest[group]) for group in groups.group_of],
    )
    ordered = [(groups.members[a][0], groups.members[b][0]) for a, b in groups.edges]
    return build_groups(
        groups.problem,
        [label[group] for group in groups.group_of],
        windows=windows,
        extra_edges=ordered,
    )


def _least_cuts(groups: Groups) -> Iterator[float]:
    """Yield a lower bound on the objective of assignments that cut each value."""
    problem = groups.problem
    speed = max(problem.speed(stage) for stage in range(problem.stages))
    longest_weight, sum_weight = problem.weights
    work_s = (groups.work_s / speed).tolist()
    total_s = sum(work_s)
    for value in groups.values:
        reader_s = min(work_s[reader] for reader in value.consumers)
        hop_s = min(value.crossing_s(far=far) for far in problem.distances)
        end_s = max(work_s[value.producer], reader_s) + hop_s
        sum_s = total_s + 2 * hop_s
        longest_s = max(sum_s / problem.ranks, end_s)
        yield longest_weight * longest_s + sum_weight * sum_s
