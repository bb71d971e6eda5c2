"""A plan's model as a tree of module calls, with what flows between neighbours."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal

from partitioner.cost.given import operator_name
from partitioner.cost.units import takes_part
from partitioner.cost.weights import read_weights
from partitioner.graph import info
from partitioner.plan.costs import Part, part_row
from partitioner.report.names import compress_names

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from torch import fx

    from partitioner.plan.plan import Plan

__all__ = ["OUTSIDE", "outline"]

OUTSIDE = -1
"""The end of a flow that comes from, or goes to, what is around a container."""
_FEWEST_ALIKE = 3
"""Equal neighbours from this number on are shown as one."""


@dataclass(slots=True)
class _Item:
    """One box: an input, a module's call, some operations, or equal neighbours."""

    kind: Literal["input", "module", "operations", "group"]
    name: str
    type: str
    nodes: list[fx.Node]
    children: list[_Item] = field(default_factory=list)


def outline(plan: Plan) -> dict[str, Any]:
    """Return the model as nested boxes, down to single layers and runs of operations.

    Neighbours that are numbered, of one class, whole on one stage and equally
    checkpointed are one group. Weights, constants and sizes are no boxes: every stage
    makes its own.

    Args:
        plan: The plan.

    Returns:
        Plain data: of every box what it costs for one micro-batch, its ``children``
        and the ``flows`` between them: ``from`` and ``to`` are positions among the
        children, or ``OUTSIDE``. A flow has ``bytes``, every tensor counted once, and
        ``crossing_bytes``, those that go to a later stage; or it is a ``tie``, the
        parameter that both ends read.
    """
    return _Outline(plan).described()


class _Outline:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.spans = plan.graph.spans
        self.weights = read_weights(plan.graph)
        last = plan.placement.stages - 1
        late = {n: last for n in self.graph.graph.nodes if info(n).kind == "late"}
        self.stage_of = {**plan.placement.stage_of, **late}
        self.block_of = plan.placement.block_of
        self.tied = {tie.name for tie in plan.layers.ties}
        # Outer calls come first: the last one that holds a node is the innermost.
        self.owner = {n: i for i, span in enumerate(self.spans) for n in span.nodes}

    def described(self) -> dict[str, Any]:
        """Build the tree and describe its root."""
        nodes = [n for n in self.graph.graph.nodes if n in self.stage_of]
        children = [*self._inputs(nodes), *self._children(nodes, None, "")]
        model = type(self.graph.model).__name__
        return self._described(_Item("module", "", model, nodes, children))

    def _inputs(self, nodes: Iterable[fx.Node]) -> Iterator[_Item]:
        """Yield the inputs that a stage reads."""
        read = {source for node in nodes for source in node.all_input_nodes}
        for node in self.graph.graph.nodes:
            if node in read and info(node).kind == "input":
                meta = info(node).outputs[0]
                dtype = str(meta.dtype).removeprefix("torch.")
                name = info(node).id.removeprefix("input:")
                yield _Item("input", name, f"{list(meta.shape)} {dtype}", [node])

    # -- what is inside what -------------------------------------------------------

    def _children(
        self, nodes: Iterable[fx.Node], span: int | None, path: str
    ) -> list[_Item]:
        found: dict[Hashable, list[fx.Node]] = defaultdict(list)
        for node, key in self._keyed(nodes, span):
            found[key].append(node)
        items = [self._item(key, inside, path) for key, inside in found.items()]
        grouped: list[_Item] = []
        for _, alike in groupby(items, key=self._likeness):
            grouped += _grouped(list(alike))
        return grouped

    def _keyed(
        self, nodes: Iterable[fx.Node], span: int | None
    ) -> Iterator[tuple[fx.Node, Hashable]]:
        """Yield nodes with what names their box: a call, a layer, a run of the rest."""
        key_of: dict[fx.Node, Hashable] = {}
        before: Hashable = None
        run = 0
        for node in nodes:
            if _is_part(node) and node.all_input_nodes[0] in key_of:
                key_of[node] = key_of[node.all_input_nodes[0]]
            else:
                key = self._key(node, span)
                run += key != before
                before = key
                key_of[node] = (run, *key) if isinstance(key, tuple) else key
            yield node, key_of[node]

    def _key(self, node: fx.Node, span: int | None) -> Hashable:
        inner = self.owner.get(node)
        while inner is not None and inner != span:
            parent = self.spans[inner].parent
            if parent == span:
                return inner
            inner = parent
        if node.op == "call_module":
            return node
        return self.stage_of[node], self.block_of.get(node)

    def _item(self, key: Hashable, nodes: list[fx.Node], path: str) -> _Item:
        if isinstance(key, tuple):
            names = dict.fromkeys(operator_name(self.graph, node) for node in nodes)
            return _Item("operations", ", ".join(names), "", nodes)
        if not isinstance(key, int):
            return self._module(str(nodes[0].target), path, nodes)
        span = self.spans[key]
        item = self._module(span.path, path, nodes)
        item.name += f" (call {span.call + 1})" if span.call else ""
        item.children = self._children(nodes, key, span.path)
        return item

    def _module(self, path: str, parent: str, nodes: list[fx.Node]) -> _Item:
        kind = type(self.graph.model.get_submodule(path)).__name__
        name = path.removeprefix(f"{parent}.") if parent else path
        return _Item("module", name, kind, nodes)

    def _likeness(self, item: _Item) -> Hashable:
        """Return a key that neighbours share if they may be shown as one."""
        stages = {self.stage_of[node] for node in item.nodes}
        pattern = re.sub(r"\d+", "#", item.name)
        if item.kind != "module" or len(stages) > 1 or pattern == item.name:
            return id(item)
        again = {node in self.block_of for node in item.nodes}
        return pattern, item.type, min(stages), *sorted(again)

    # -- what is said of a box -----------------------------------------------------

    def _described(self, item: _Item) -> dict[str, Any]:
        nodes = [node for node in item.nodes if node in self.stage_of]
        part = Part(item.name, item.type, nodes, _source(nodes))
        row = part_row(self.plan, part, self.weights, self.stage_of)
        again = sum(node in self.block_of for node in nodes)
        return {
            **row,
            "box": item.kind,
            "recomputed": again / len(nodes) if nodes else 0.0,
            "ties": self._ties(nodes),
            "children": [self._described(child) for child in item.children],
            "flows": [*self._flows(item), *self._tie_flows(item)],
        }

    def _ties(self, nodes: Iterable[fx.Node]) -> list[str]:
        read = {weight.name for node in nodes for weight in self.weights[node]}
        return sorted(read & self.tied)

    def _flows(self, item: _Item) -> Iterator[dict[str, Any]]:
        """Yield what the children hand to each other, to and from the outside."""
        place = {n: i for i, child in enumerate(item.children) for n in child.nodes}
        sent: dict[tuple[int, int], dict[fx.Node, bool]] = defaultdict(dict)
        for node, here in place.items():
            for source in node.all_input_nodes:
                there = place.get(source, OUTSIDE)
                if there != here and self._is_data(source):
                    values = sent[there, here]
                    values[source] = values.get(source, False) or self._hops(
                        source, node
                    )
            if any(user not in place and user in self.stage_of for user in node.users):
                sent[here, OUTSIDE][node] = False
        for (start, end), values in sent.items():
            crossing = [node for node, crosses in values.items() if crosses]
            yield {
                "from": start,
                "to": end,
                "bytes": _nbytes(values),
                "crossing_bytes": _nbytes(crossing),
            }

    def _hops(self, source: fx.Node, node: fx.Node) -> bool:
        """Whether a tensor comes from an earlier stage."""
        here = self.stage_of.get(node)
        return self.stage_of.get(source, here) != here

    def _is_data(self, node: fx.Node) -> bool:
        return node in self.stage_of or info(node).kind == "input"

    def _tie_flows(self, item: _Item) -> Iterator[dict[str, Any]]:
        """Yield the pairs of children between which a parameter is tied."""
        for name in self._ties(item.nodes):
            readers = [
                position
                for position, child in enumerate(item.children)
                if name in self._ties(child.nodes)
            ]
            for start, end in pairwise(readers):
                yield {"from": start, "to": end, "tie": name}


def _is_part(node: fx.Node) -> bool:
    """Whether a node only takes a result out of the results of the one before it."""
    if node.target is not operator.getitem:
        return False
    # A tuple of results is no tensor itself.
    return takes_part(node) or not info(node.all_input_nodes[0]).outputs


def _grouped(alike: list[_Item]) -> list[_Item]:
    """Return equal neighbours as one box, if they are many and counted in order."""
    names = compress_names(item.name for item in alike)
    if len(alike) < _FEWEST_ALIKE or len(names) > 1:
        return alike
    nodes = [node for item in alike for node in item.nodes]
    return [_Item("group", names[0], alike[0].type, nodes, alike)]


def _nbytes(nodes: Iterable[fx.Node]) -> int:
    return sum(meta.nbytes for node in nodes for meta in info(node).outputs)


def _source(nodes: Iterable[fx.Node]) -> str:
    """Return the first line of the user's code in a box."""
    return next(filter(None, (info(node).source for node in nodes)), "")
