"""Put measured seconds in place of the roofline's, where there are some."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partitioner.cost.blocks import block_spans
from partitioner.cost.openings import opening
from partitioner.cost.roofline import kernels_s
from partitioner.cost.sums import accumulations, result_sums, trains
from partitioner.cost.weights import read_weights
from partitioner.cost.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

    from partitioner.cost.measurements import Measurements, Timing
    from partitioner.costed import CostedGraph, Opening
    from partitioner.graph import Span

__all__ = ["with_seconds"]


def with_seconds(costed: CostedGraph, measurements: Measurements) -> CostedGraph:
    """Return the graph with each node's seconds as measured.

    A node's own timing counts; the nodes of a repeated module share the time that the
    whole module took, each in proportion to its own. Adding gradients to parameters is
    the engine's work and priced by the bytes it moves, on top.

    The host starts kernels ahead of the device. What a repeated module gives it to do
    is kept apart: a stage takes as long as the slower of the two.

    Args:
        costed: Priced by the roofline, which stays where nothing was measured.
        measurements: Timings by signature.
    """
    return _Timed(costed, measurements).graph()


class _Timed:
    def __init__(self, costed: CostedGraph, measurements: Measurements) -> None:
        self._costed = costed
        self._measured = measurements
        self._work = Work(costed.graph, compiled=measurements.compiled)
        self._order = list(costed.graph.graph.nodes)
        self._upkeep_s = self._upkeep()
        self._used: set[str] = set()
        self._blocks = self._known_blocks()
        self._bare = {node: self._seconds(node) for node in costed.costs}
        self._timed = {n for n in self._bare if self._work.of_node(n) in self._used}
        self._host_s: dict[fx.Node, float] = {}

    def graph(self) -> CostedGraph:
        """Return the priced graph with these seconds."""
        opened = {found.module: found for found in self._costed.openings}
        opened |= {found.module: found for found in self._share_blocks()}
        costs = {
            node: replace(
                cost,
                forward_s=self._bare[node][0],
                backward_s=self._bare[node][1] + self._upkeep_s[node],
                host_s=self._host_s.get(node, 0.0),
            )
            for node, cost in self._costed.costs.items()
        }
        return replace(
            self._costed,
            costs=costs,
            openings=tuple(opened.values()),
            measurements=self._measured.only(self._used | self._failed()),
            measured_share=self._share(),
        )

    def _failed(self) -> set[str]:
        """Return the signatures of what could not be timed, which the plan tells."""
        mine = {self._work.of_node(node) for node in self._costed.costs}
        mine |= {self._work.of_block(span) for span in block_spans(self._costed.graph)}
        return mine & self._measured.failed.keys()

    def _upkeep(self) -> dict[fx.Node, float]:
        """Return what adding to the parameters' gradients takes, by node."""
        graph = self._costed.graph
        weights = read_weights(graph)
        return {
            node: kernels_s(self._costed.profile, accumulations(weights[node]))
            if trains(node) and self._work.of_node(node)
            else 0.0
            for node in self._costed.costs
        }

    def _seconds(self, node: fx.Node) -> tuple[float, float]:
        """Return forward and backward of one node, parameters' sums left out."""
        cost, signature = self._costed.costs[node], self._work.of_node(node)
        timing = self._measured.nodes.get(signature)
        if timing is None:
            return cost.forward_s, cost.backward_s - self._upkeep_s[node]
        self._used.add(signature)
        sums_s = kernels_s(self._costed.profile, result_sums(node))
        return timing.forward_s, timing.backward_s + sums_s

    def _known_blocks(self) -> list[tuple[Span, str, Timing]]:
        """Return the repeated modules that were timed, with signature and timing."""
        found = []
        for span in block_spans(self._costed.graph):
            signature = self._work.of_block(span)
            timing = self._measured.blocks.get(signature)
            if timing is not None:
                found.append((span, signature, timing))
        return found

    def _share_blocks(self) -> Iterator[Opening]:
        """Divide each block's time among its nodes; yield what opening it costs."""
        for span, signature, timing in self._blocks:
            self._used.add(signature)
            self._timed |= span.nodes
            forward, backward = self._scale(span, timing)
            device_s = timing.forward_s + timing.backward_s
            for node in span.nodes & self._bare.keys():
                forward_s, backward_s = self._bare[node]
                self._bare[node] = forward_s * forward, backward_s * backward
                if device_s:
                    share = sum(self._bare[node]) / device_s
                    self._host_s[node] = share * timing.host_s
            yield from opening(self._order, span, timing.opening_s)

    def _scale(self, span: Span, timing: Timing) -> tuple[float, float]:
        """Return the whole block's time over the sum of its nodes'."""
        parts = [self._bare[node] for node in span.nodes if node in self._bare]
        forward_s = sum(part[0] for part in parts)
        backward_s = sum(part[1] for part in parts)
        return (
            timing.forward_s / forward_s if forward_s else 0.0,
            timing.backward_s / backward_s if backward_s else 0.0,
        )

    def _share(self) -> float:
        """Return which share of the time was measured."""
        total_s = sum(map(sum, self._bare.values()))
        timed_s = sum(sum(self._bare[node]) for node in self._timed & self._bare.keys())
        return timed_s / total_s if total_s else 0.0
