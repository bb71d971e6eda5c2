"""Collects units that must share a stage into groups, in a topological order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from partitioner.solve.problem import Problem

__all__ = ["GroupValue", "Groups", "Quota", "build_groups", "condensed", "unit_edges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """All tensors of one group that are read by the same other groups."""

    producer: int
    consumers: tuple[int, ...]
    """Groups that read it, without the producer; never empty."""
    hop_s: float
    far_hop_s: float
    wire_bytes: int

    def crossing_s(self, *, far: bool) -> float:
        """Return the time to cross a boundary."""
        return self.far_hop_s if far else self.hop_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Every stage holds equally many of some parts."""

    counts: npt.NDArray[np.int64]
    """How many of the parts are in each group."""
    each: int
    """How many a stage holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The reduced problem: groups are numbered in a topological order of ``edges``."""

    problem: Problem
    group_of: tuple[int, ...]
    """Group of each unit."""
    members: tuple[tuple[int, ...], ...]
    """Units of each group, ascending."""
    work_s: npt.NDArray[np.float64]
    """Forward and backward time of each group, forced recomputation included."""
    weighted: tuple[bool, ...]
    """Whether a group has a parameter of its own."""
    earliest: npt.NDArray[np.int64]
    """First stage that the pins leave to each group."""
    latest: npt.NDArray[np.int64]
    """Last stage that the pins leave to each group."""
    edges: tuple[tuple[int, int], ...]
    """Pairs (before, after): the first may not be on a later stage."""
    values: tuple[GroupValue, ...]
    quotas: tuple[Quota, ...]

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.members)

    def stage_of_units(self, stage_of_groups: Sequence[int]) -> tuple[int, ...]:
        """Spread the stages of the groups to their units."""
        return tuple(int(stage_of_groups[group]) for group in self.group_of)


def unit_edges(problem: Problem) -> list[tuple[int, int]]:
    """Return every pair (before, after) of units, data and order edges together.

    What passes through shared memory orders nothing.
    """
    if problem.transfer == "ends":
        return list(problem.order_edges)
    data = [(v.producer, reader) for v in problem.values for reader in v.consumers]
    return [*data, *problem.order_edges]


def condensed(problem: Problem) -> Groups:
    """Merge units on a cycle, and what the constraints keep on one stage."""
    joined = nx.utils.UnionFind(range(len(problem.units)))
    for constraint in problem.constraints:
        for part in constraint.parts:
            joined.union(*part)
    return build_groups(problem, [joined[u] for u in range(len(problem.units))])


def build_groups(
    problem: Problem,
    label: Sequence[int],
    *,
    windows: tuple[Sequence[int], Sequence[int]] | None = None,
    extra_edges: Iterable[tuple[int, int]] = (),
) -> Groups:
    """Merge the units of equal label, and all units on a cycle that this makes.

    Args:
        problem: What is to be placed.
        label: Any number per unit; equal numbers share a stage.
        windows: First and last stage of each unit; None: every stage.
        extra_edges: More pairs (before, after) of units.

    Returns:
        The groups, numbered so that program order is kept where it can be.
    """
    edges = [*unit_edges(problem), *extra_edges]
    group_of, members = _number(label, edges)
    first, last = windows or (
        [0] * len(label),
        [problem.stages - 1] * len(label),
    )
    pairs = {(group_of[a], group_of[b]) for a, b in edges}
    return Groups(
        problem=problem,
        group_of=tuple(group_of),
        members=members,
        work_s=_work_s(problem, group_of, len(members)),
        weighted=tuple(
            any(problem.units[u].weighted for u in group) for group in members
        ),
        earliest=np.array([max(first[u] for u in group) for group in members]),
        latest=np.array([min(last[u] for u in group) for group in members]),
        edges=tuple(sorted((a, b) for a, b in pairs if a != b)),
        values=_group_values(problem, group_of),
        quotas=tuple(_quotas(problem, group_of, len(members))),
    )


def _number(
    label: Sequence[int], edges: Iterable[tuple[int, int]]
) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
    """Condense cycles between labels and number the groups topologically."""
    graph = nx.DiGraph()
    graph.add_nodes_from(label)
    graph.add_edges_from((label[a], label[b]) for a, b in edges if label[a] != label[b])
    condensed = nx.condensation(graph)
    component = condensed.graph["mapping"]
    first: dict[int, int] = {}
    for unit, name in enumerate(label):
        first.setdefault(component[name], unit)
    order = nx.lexicographical_topological_sort(condensed, key=first.__getitem__)
    number = {name: index for index, name in enumerate(order)}
    group_of = [number[component[name]] for name in label]
    members: list[list[int]] = [[] for _ in number]
    for unit, group in enumerate(group_of):
        members[group].append(unit)
    return group_of, tuple(tuple(group) for group in members)


def _quotas(problem: Problem, group_of: Sequence[int], count: int) -> Iterator[Quota]:
    for constraint in problem.constraints:
        if constraint.kind == "equal":
            firsts = [group_of[part[0]] for part in constraint.parts]
            yield Quota(
                counts=np.bincount(firsts, minlength=count),
                each=len(firsts) // problem.stages,
            )


def _work_s(
    problem: Problem, group_of: Sequence[int], count: int
) -> npt.NDArray[np.float64]:
    work_s = np.zeros(count)
    forced = problem.checkpointing == "all"
    for unit, group in zip(problem.units, group_of, strict=True):
        again_s = unit.forward_s if forced and unit.block >= 0 else 0.0
        work_s[group] += unit.forward_s + unit.backward_s + again_s
    return work_s


def _group_values(problem: Problem, group_of: Sequence[int]) -> tuple[GroupValue, ...]:
    merged: dict[tuple[int, tuple[int, ...]], tuple[float, float, int]] = {}
    paid = problem.paid_share
    for value in problem.values:
        producer = group_of[value.producer]
        readers = {group_of[reader] for reader in value.consumers} - {producer}
        if not readers:
            continue
        key = (producer, tuple(sorted(readers)))
        near_s, far_s, wire_bytes = merged.get(key, (0.0, 0.0, 0))
        merged[key] = (
            near_s + paid * value.crossing_s(far=False),
            far_s + paid * value.crossing_s(far=True),
            wire_bytes + value.wire_bytes,
        )
    return tuple(
        GroupValue(
            producer=producer,
            consumers=readers,
            hop_s=near_s,
            far_hop_s=far_s,
            wire_bytes=wire_bytes,
        )
        for (producer, readers), (near_s, far_s, wire_bytes) in sorted(merged.items())
    )
