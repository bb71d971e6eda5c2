"""Lays the groups out in several topological orders, for slicing into stages."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.solve.groups import Groups

__all__ = ["Order", "topological_orders"]

Order = tuple[int, ...]

RANDOM_ORDERS_WORK = 6_000
"""Groups laid out at random altogether: small problems get more tries."""
MAX_RANDOM_ORDERS = 12


def topological_orders(groups: Groups, witness: Sequence[int]) -> Iterator[Order]:
    """Yield different topological orders, the most promising first.

    No clock decides how many there are, so equal input gives equal orders.

    Args:
        groups: What to lay out.
        witness: Stage of each group in some legal assignment; sorting by it gives an
            order that is sure to have a legal slicing.
    """
    graph = _Graph(groups)
    seen: set[Order] = set()
    for make in _makers(graph, groups, witness):
        order = make()
        if order not in seen:
            seen.add(order)
            yield order


def _makers(
    graph: _Graph, groups: Groups, witness: Sequence[int]
) -> Iterator[Callable[[], Order]]:
    count = len(groups)
    yield lambda: tuple(range(count))
    yield graph.depth_first
    yield graph.as_late_as_possible
    yield graph.breadth_first
    yield _LeastLive(graph, groups).order
    yield lambda: tuple(sorted(range(count), key=lambda g: (witness[g], g)))
    for seed in range(min(MAX_RANDOM_ORDERS, RANDOM_ORDERS_WORK // max(1, count))):
        yield lambda seed=seed: graph.random_depth_first(seed)  # type: ignore[misc]


class _Graph:
    """Adjacency of the groups, with the usual walks."""

    def __init__(self, groups: Groups) -> None:
        self.after: list[list[int]] = [[] for _ in range(len(groups))]
        self.before: list[list[int]] = [[] for _ in range(len(groups))]
        for source, target in groups.edges:
            self.after[source].append(target)
            self.before[target].append(source)

    def depth_first(self) -> Order:
        """Return the order that follows a branch to its end before the next."""
        return self._walk(self.before, self.after, lambda ready: ready.pop())

    def breadth_first(self) -> Order:
        """Return the order that takes groups as soon as they are ready."""
        return self._walk(self.before, self.after, lambda ready: ready.popleft())

    def as_late_as_possible(self) -> Order:
        """Return the order that puts each group just before its readers."""
        order = self._walk(self.after, self.before, lambda ready: ready.popleft())
        return order[::-1]

    def random_depth_first(self, seed: int) -> Order:
        """Return a seeded random order that mostly follows branches."""
        source = random.Random(seed)

        def pick(ready: deque[int]) -> int:
            ready.rotate(source.choice((0, 0, 0, 1, 2)))
            return ready.pop()

        return self._walk(self.before, self.after, pick)

    @staticmethod
    def _walk(
        before: list[list[int]],
        after: list[list[int]],
        pick: Callable[[deque[int]], int],
    ) -> Order:
        missing = [len(sources) for sources in before]
        ready = deque(g for g in range(len(before) - 1, -1, -1) if not missing[g])
        order: list[int] = []
        while ready:
            group = pick(ready)
            order.append(group)
            for target in reversed(after[group]):
                missing[target] -= 1
                if not missing[target]:
                    ready.append(target)
        return tuple(order)


class _LeastLive:
    """Greedy order that keeps the values that wait for a reader cheap."""

    def __init__(self, graph: _Graph, groups: Groups) -> None:
        self.graph = graph
        self.values = groups.values
        self.left = [len(value.consumers) for value in groups.values]
        self.inputs: list[list[int]] = [[] for _ in range(len(groups))]
        self.made_s = [0.0] * len(groups)
        for index, value in enumerate(groups.values):
            self.made_s[value.producer] += value.hop_s
            for reader in value.consumers:
                self.inputs[reader].append(index)
        self.missing = [len(sources) for sources in graph.before]
        self.done = [False] * len(groups)
        self.ready: list[tuple[float, int]] = []

    def order(self) -> Order:
        for group, missing in enumerate(self.missing):
            if not missing:
                self._offer(group)
        order: list[int] = []
        while self.ready:
            _, group = heapq.heappop(self.ready)
            if not self.done[group]:
                self.done[group] = True
                order.append(group)
                self._release(group)
        return tuple(order)

    def _offer(self, group: int) -> None:
        """Queue a group by how much dearer the live values get when it comes next."""
        ended_s = sum(
            self.values[v].hop_s for v in self.inputs[group] if self.left[v] == 1
        )
        heapq.heappush(self.ready, (self.made_s[group] - ended_s, group))

    def _release(self, group: int) -> None:
        for v in self.inputs[group]:
            self.left[v] -= 1
            if self.left[v] == 1:  # its last reader has just become cheaper
                for reader in self.values[v].consumers:
                    if not self.done[reader] and not self.missing[reader]:
                        self._offer(reader)
        for target in self.graph.after[group]:
            self.missing[target] -= 1
            if not self.missing[target]:
                self._offer(target)
