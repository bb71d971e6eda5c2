"""Cuts to verify: every place of a small model, random ones of a large one."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from torch import fx

from partitioner.cost import Units, units
from partitioner.emit import Placement
from partitioner.graph import ModelGraph, info

__all__ = ["Cutter"]

ALL_PLACES = 8
"""Models with fewer places are cut into two at each."""


class Cutter:
    """Cuts one recorded model at legal places, by chance.

    Args:
        graph: The recorded model.
        rng: The chance.
    """

    def __init__(self, graph: ModelGraph, rng: random.Random) -> None:
        self.graph, self.rng = graph, rng
        self.units: Units = units(SimpleNamespace(graph=graph))  # type: ignore[arg-type]
        found = enumerate(self.units.nodes)
        self.order = [unit for unit, nodes in found if any(map(_computes, nodes))]
        reads_input = [i for i, u in enumerate(self.order) if self._has_input(u)]
        self.first = 1 + max(reads_input, default=0)

    def _has_input(self, unit: int) -> bool:
        return any(info(node).kind == "input" for node in self.units.nodes[unit])

    @property
    def places(self) -> range:
        """Where a cut may go: before which unit."""
        return range(self.first, len(self.order))

    def cuts(self) -> Iterator[tuple[str, Placement]]:
        """Yield (what it is, placement): into two to four stages."""
        two = self.places if len(self.places) < ALL_PLACES else ()
        for place in two:
            yield f"2 stages at {place}", self.placement((place,))
        stages = min(4, len(self.places) + 1)
        cut = tuple(sorted(self.rng.sample(self.places, stages - 1)))
        yield f"{stages} stages at {cut}", self.placement(cut)
        yield "2 stages in another order", self.shuffled()

    def whole(self) -> Placement:
        """Return everything on one stage."""
        return self.placement(())

    def node_by_node(self) -> Placement:
        """Return as many stages as there are units, up to 12."""
        most = min(len(self.places), 11)
        return self.placement(tuple(sorted(self.rng.sample(self.places, most))))

    def recomputed(self) -> Placement:
        """Return two stages, each recomputed as a whole."""
        cut = (self.rng.choice(self.places),) if self.places else ()
        placement = self.placement(cut)
        blocks = dict.fromkeys(placement.stage_of, "block")
        return Placement(
            stages=placement.stages, stage_of=placement.stage_of, block_of=blocks
        )

    def placement(
        self, cuts: Sequence[int], order: Sequence[int] | None = None
    ) -> Placement:
        """Cut ``order`` (units in program order if None) before the given places."""
        stage_of = {
            node: sum(place >= cut for cut in cuts)
            for place, unit in enumerate(self.order if order is None else order)
            for node in self.units.nodes[unit]
            if _computes(node)
        }
        return Placement(stages=len(cuts) + 1, stage_of=stage_of, block_of={})

    def through(self, patterns: Sequence[str]) -> Placement | None:
        """Cut inside one module for each pattern of paths; None if there is none."""
        cuts = set()
        for pattern in patterns:
            inside = [place for place in self.places if self._inside(place, pattern)]
            if not inside:
                return None
            cuts.add(self.rng.choice(inside))
        return self.placement(sorted(cuts))

    def _inside(self, place: int, pattern: str) -> bool:
        """Whether a module that matches is around a place, or a leaf right before."""
        before = self.units.nodes[self.order[place - 1]]
        leaves = [str(node.target) for node in before if node.op == "call_module"]
        pairs = zip(self._owner(place - 1), self._owner(place), strict=False)
        common = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        paths = itertools.accumulate(
            (part for part, _ in common), lambda path, part: f"{path}.{part}"
        )
        return any(re.search(pattern, path) for path in (*paths, *leaves))

    def _owner(self, place: int) -> list[str]:
        """Return the path of the module call that a unit's first operation is in."""
        nodes = self.units.nodes[self.order[place]]
        node = next(filter(_computes, nodes))
        path = info(node).module.split(".")
        # A leaf's own call is an operation of the module around it.
        return path[:-1] if node.op == "call_module" else path

    def shuffled(self) -> Placement:
        """Cut into two a random order of the units that data and writes allow."""
        order = self._random_order()
        reads_input = [place for place, u in enumerate(order) if self._has_input(u)]
        first = 1 + max(reads_input, default=0)
        cuts = [self.rng.randrange(first, len(order))] if first < len(order) else []
        return self.placement(cuts, order)

    def _random_order(self) -> list[int]:
        waiting = {unit: self._before(unit) for unit in self.order}
        order: list[int] = []
        while waiting:
            ready = [unit for unit, before in waiting.items() if not before]
            chosen = self.rng.choice(ready)
            order.append(chosen)
            del waiting[chosen]
            for before in waiting.values():
                before.discard(chosen)
        return order

    def _before(self, unit: int) -> set[int]:
        nodes = set(self.units.nodes[unit])
        sources = [source for node in nodes for source in node.all_input_nodes]
        sources += [
            before for before, after in self.graph.order_edges if after in nodes
        ]
        found = {self.units.unit_of[n] for n in sources if n in self.units.unit_of}
        return (found - {unit}) & set(self.order)


def _computes(node: fx.Node) -> bool:
    return info(node).kind == "compute"
