"""Tell which nodes and blocks do the same work: what is timed once and used again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.cost.replay import Replay
from partitioner.cost.signature import block_signature, node_signature
from partitioner.cost.units import takes_part
from partitioner.graph import info

if TYPE_CHECKING:
    from torch import fx

    from partitioner.graph import ModelGraph, Span

__all__ = ["RUNS", "Work"]

RUNS = frozenset({"compute", "late"})
"""Kinds of nodes that take time on a stage."""


class Work:
    """Signatures of one graph's nodes and blocks.

    Args:
        graph: The recorded model.
        compiled: Whether blocks run under ``torch.compile``.
    """

    def __init__(self, graph: ModelGraph, *, compiled: bool) -> None:
        self._graph = graph
        self._compiled = compiled
        self._replay = Replay(graph, fused=False)
        self._nodes: dict[fx.Node, str] = {}

    def of_node(self, node: fx.Node) -> str:
        """Return the signature of one node; "" if it takes no time of its own."""
        if node not in self._nodes:
            self._nodes[node] = self._signature(node)
        return self._nodes[node]

    def of_block(self, span: Span) -> str:
        """Return the signature of a whole module call."""
        nodes = (node for node in self._graph.graph.nodes if node in span.nodes)
        module = self._graph.model.get_submodule(span.path)
        return block_signature(
            type(module).__name__,
            filter(None, map(self.of_node, nodes)),
            compiled=self._compiled,
        )

    def _signature(self, node: fx.Node) -> str:
        if info(node).kind not in RUNS or takes_part(node):
            return ""
        return node_signature(self._name(node), self._replay.arguments(node).key)

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return type(self._graph.model.get_submodule(str(node.target))).__name__
        target = node.target
        return target if isinstance(target, str) else getattr(target, "__name__", "op")
