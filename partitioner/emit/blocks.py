"""What of a segment is compiled together: each repeated module, and what is between.

A whole stage in one compiled graph is slower than its layers compiled apart, takes
longer to compile, and is not what was timed: prices are of repeated modules.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from partitioner.cost.blocks import block_spans
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import fx

    from partitioner.emit.fuse import Call
    from partitioner.graph import ModelGraph

__all__ = ["Blocks"]


class Blocks:
    """The repeated modules of a model.

    Args:
        graph: The recorded model.
    """

    def __init__(self, graph: ModelGraph) -> None:
        self._graph = graph
        self._spans = block_spans(graph)
        self._block_of: Mapping[fx.Node, str] = {
            node: span.id for span in self._spans for node in span.nodes
        }

    def around(self) -> frozenset[str]:
        """Return the ids of the module calls that have repeated modules inside."""
        spans = self._graph.spans
        found: set[str] = set()
        for span in self._spans:
            outer = span.parent
            while outer is not None:
                found.add(spans[outer].id)
                outer = spans[outer].parent
        return frozenset(found)

    def numbers(self, calls: Sequence[Call]) -> list[int]:
        """Number the steps of a segment, those alike that are compiled together.

        What is written in place stays with all that shares its memory: a compiled
        function may not return a view that another one writes.

        Args:
            calls: The segment's steps, in order.
        """
        blocks = [self._block_of.get(call.nodes[0], "") for call in calls]
        inseparable = set(self._inseparable(calls))
        begins = (
            index not in inseparable and blocks[index] != blocks[index - 1]
            for index in range(1, len(calls))
        )
        return list(accumulate(begins, initial=0)) if calls else []

    def _inseparable(self, calls: Sequence[Call]) -> Iterable[int]:
        """Yield the steps that are compiled with the one before."""
        step_of = {node: i for i, call in enumerate(calls) for node in call.nodes}
        for group in self._graph.groups:
            steps = [step_of[node] for node in group if node in step_of]
            if steps and any(info(node).writes for node in group):
                yield from range(min(steps) + 1, max(steps) + 1)
