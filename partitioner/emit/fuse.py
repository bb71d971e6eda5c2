"""Re-fuse: a module whole inside one segment is called as the user's own module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import fx

from partitioner.graph import ModelGraph, Span, info

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["Call", "fuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One step of a segment: a node, or a whole module call."""

    nodes: tuple[fx.Node, ...]
    """The placed nodes it stands for, in program order."""
    span: Span | None = None
    arguments: tuple[fx.Node, ...] = field(default=())
    """Nodes in a whole module call's arguments."""

    def reads(self) -> Iterable[fx.Node]:
        """Return the nodes that must be at hand before it runs."""
        if self.span is not None:
            return self.arguments
        return self.nodes[0].all_input_nodes


class _Fuser:
    """Chooses, for one segment, the outermost module calls that can be whole."""

    def __init__(
        self,
        graph: ModelGraph,
        nodes: Sequence[fx.Node],
        at_hand: Collection[fx.Node],
        opened: Collection[str],
    ) -> None:
        self.graph = graph
        self.inside = frozenset(nodes)
        self.at_hand = at_hand
        self.opened = opened
        self.takers = _takers(graph.spans)

    def can_be_whole(self, span: Span) -> bool:
        """Check for escapes: what goes in and out must be arguments and results."""
        if span.opened_because or span.id in self.opened:
            return False
        placed = {node for node in span.nodes if is_placed(node)}
        if not placed or not placed <= self.inside:
            return False
        arguments = set(argument_nodes(span))
        results = {node for _, node in span.outputs}
        return (
            all(self._is_at_hand(node) for node in arguments)
            and all(self._returns(node, span, results) for node in placed)
            and all(self._takes(node, span, arguments) for node in span.nodes)
        )

    def _is_at_hand(self, node: fx.Node) -> bool:
        return not is_placed(node) or node in self.at_hand or node in self.inside

    def _returns(self, node: fx.Node, span: Span, results: Collection[fx.Node]) -> bool:
        used = any(user not in span.nodes for user in node.users)
        # A call may be handed what none of its operations reads: who writes its own
        # argument in place leaves a new value behind without returning it.
        takers = self.takers.get(node, ())
        handed = any(not taker.nodes <= span.nodes for taker in takers)
        return node in results or not (used or handed)

    def _takes(self, node: fx.Node, span: Span, arguments: Collection[fx.Node]) -> bool:
        return all(
            source in span.nodes or source in arguments or self._is_own(source, span)
            for source in node.all_input_nodes
        )

    def _is_own(self, source: fx.Node, span: Span) -> bool:
        """Whether the module finds ``source`` without being given it."""
        kind = info(source).kind
        if kind == "size" or info(source).id.startswith(("state:", "mode:")):
            return True
        if kind != "weight":
            return False
        target = str(source.target)
        if target.startswith("_constants."):
            return True
        prefix = f"{span.path}."
        aliases = self.graph.aliases
        return any(
            name.startswith(prefix)
            for name, first in aliases.items()
            if first == target
        )


def _takers(spans: Iterable[Span]) -> Mapping[fx.Node, Sequence[Span]]:
    """Return the module calls that have each node among their arguments."""
    found: dict[fx.Node, list[Span]] = {}
    for span in spans:
        for node in argument_nodes(span):
            found.setdefault(node, []).append(span)
    return found


def is_placed(node: fx.Node) -> bool:
    """Whether a node is placed by the plan (and not rebuilt wherever it is read)."""
    return info(node).kind in ("compute", "input", "late")


def argument_nodes(span: Span) -> list[fx.Node]:
    """Return the nodes in a module call's arguments."""
    found: dict[fx.Node, None] = {}

    def note(node: fx.Node) -> fx.Node:
        found[node] = None
        return node

    fx.map_arg((span.args, dict(span.kwargs)), note)
    return list(found)


def fuse(
    graph: ModelGraph,
    nodes: Sequence[fx.Node],
    at_hand: Collection[fx.Node],
    opened: Collection[str] = (),
) -> list[Call]:
    """Return the steps of one segment: whole modules where possible, else nodes.

    Args:
        graph: The recorded model.
        nodes: The segment's nodes in program order.
        at_hand: Nodes made by earlier segments.
        opened: Ids of module calls that are not to be called whole.
    """
    fuser = _Fuser(graph, nodes, at_hand, opened)
    span_of: dict[fx.Node, Span] = {}
    for span in graph.spans:  # outer calls come before the calls inside them
        if span.nodes.isdisjoint(span_of) and fuser.can_be_whole(span):
            span_of.update(dict.fromkeys(span.nodes, span))
    calls: list[Call] = []
    done: set[str] = set()
    for node in nodes:
        whole = span_of.get(node)
        if whole is None:
            calls.append(Call(nodes=(node,)))
        elif whole.id not in done:
            done.add(whole.id)
            calls.append(_whole_call(whole, nodes))
    return calls


def _whole_call(span: Span, nodes: Sequence[fx.Node]) -> Call:
    members = tuple(node for node in nodes if node in span.nodes)
    return Call(nodes=members, span=span, arguments=tuple(argument_nodes(span)))


def result_paths(span: Span) -> Mapping[fx.Node, tuple[tuple[str, object], ...]]:
    """Return where in a module's result each node is."""
    paths: dict[fx.Node, tuple[tuple[str, object], ...]] = {}
    for path, node in span.outputs:
        paths.setdefault(node, path)
    return paths
