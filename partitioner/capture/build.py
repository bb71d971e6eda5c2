"""Merged recording → fx graph: one node an operation, sizes and modes as nodes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from partitioner.capture.merge import ByMode
from partitioner.capture.prune import refs
from partitioner.capture.records import (
    Call,
    DeviceRef,
    Path,
    Recording,
    Ref,
    SpanRecord,
)
from partitioner.capture.sizes import FreeSize, SizeExpr
from partitioner.capture.tree import leaves, map_tree, relabel, tensor_paths
from partitioner.graph import NodeInfo, NodeKind, Span, TensorMeta
from partitioner.runtime.ops import by_mode

if TYPE_CHECKING:
    from partitioner.capture.takes import Takes

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Builds the fx graph of one merged recording.

    Args:
        takes: What was recorded.
    """

    def __init__(self, takes: Takes) -> None:
        self.recording: Recording = takes.recording
        self.sizes: tuple[FreeSize, ...] = takes.sizes
        self.graph = fx.Graph()
        self.nodes: dict[Ref, fx.Node] = {}
        self.inputs: list[fx.Node] = []
        self.shared: dict[Any, fx.Node] = {}
        self.calls: dict[int, list[fx.Node]] = {}
        self.used = _used_refs(self.recording)
        self.spans: tuple[Span, ...] = ()

    def build(self) -> None:
        """Create every node, in program order, and the output."""
        for index, call in enumerate(self.recording.calls):
            if call.kind == "input":
                self._add_call(index, call)
        for index, call in enumerate(self.recording.calls):
            if call.kind != "input":
                self._add_call(index, call)
        self.spans = tuple(self._span(record) for record in self.recording.spans)
        found = [
            leaf for leaf in leaves(self.recording.output) if isinstance(leaf, Ref)
        ]
        node = self.graph.output(tuple(self.nodes[ref] for ref in found))
        node.meta["info"] = NodeInfo(id="output", kind="output", module="", source="")

    def output_structure(self) -> Any:
        """Return the output's template with nodes in place of references."""
        return relabel(
            self.recording.output,
            lambda leaf: self.nodes[leaf] if isinstance(leaf, Ref) else leaf,
        )

    # -- nodes ----------------------------------------------------------------------

    def _add_call(self, index: int, call: Call) -> None:
        args, kwargs = self.convert(call.args), self.convert(call.kwargs)
        node = self._create(call, args, kwargs)
        self.calls[index] = [node]
        kind: NodeKind = "compute"
        if call.kind == "input":
            kind = "input"
            self.inputs.append(node)
        elif call.kind in ("weight", "constant"):
            kind = "weight"
        node.meta["info"] = NodeInfo(
            id=call.id,
            kind=kind,
            module=call.module,
            source=call.source,
            outputs=tuple(meta for _, meta in call.outputs),
            saved=tuple(call.saved.items()),
            writes=call.writes,
            draws=call.draws,
            differentiates=call.differentiates,
            draw_key=call.draw_key,
            region=call.region,
        )
        node.meta["eval_memory"] = (call.eval_storages, call.eval_writes)
        self._add_results(index, call, node)

    def _create(self, call: Call, args: Any, kwargs: Any) -> fx.Node:
        target: Any = call.target
        if call.kind == "input":
            return self.graph.placeholder(target)
        if call.kind in ("weight", "constant"):
            return self.graph.create_node("get_attr", target)
        ops = {
            "function": "call_function",
            "method": "call_method",
            "module": "call_module",
        }
        return self.graph.create_node(ops[call.kind], target, args, kwargs)

    def _add_results(self, index: int, call: Call, node: fx.Node) -> None:
        """Give each tensor of a nested result a node of its own."""
        for path, meta in call.outputs:
            ref = Ref(index, path)
            if path == ():
                self.nodes[ref] = node
            elif ref in self.used:
                self.nodes[ref] = self._pick(index, call, node, path, meta)

    def _pick(
        self, index: int, call: Call, node: fx.Node, path: Path, meta: TensorMeta
    ) -> fx.Node:
        current = node
        for depth in range(1, len(path) + 1):
            prefix = path[:depth]
            key = (index, prefix)
            if key not in self.shared:
                how, what = prefix[-1]
                function = operator.getitem if how == "item" else getattr
                picked = self.graph.call_function(function, (current, what))
                steps = ".".join(str(step[1]) for step in prefix)
                picked.meta["info"] = NodeInfo(
                    id=f"{call.id}.{steps}",
                    kind="compute",
                    module=call.module,
                    source=call.source,
                    outputs=(meta,) if prefix == path else (),
                )
                picked.meta["part"] = True
                places = [place for place, _ in call.outputs]
                whole = prefix == path
                storages = (call.eval_storages[places.index(path)],) if whole else ()
                picked.meta["eval_memory"] = (storages, ())
                self.shared[key] = picked
                self.calls[index].append(picked)
            current = self.shared[key]
        return current

    # -- arguments --------------------------------------------------------------------

    def convert(self, tree: Any) -> Any:
        """Turn an argument tree into fx arguments."""
        return map_tree(self._leaf, tree)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.nodes[value]
        if isinstance(value, SizeExpr):
            return self._size_expression(value)
        if isinstance(value, ByMode):
            return self._by_mode(value)
        if isinstance(value, DeviceRef):
            return self._state("device")
        return value

    def _state(self, name: str) -> fx.Node:
        """Return the node of the running segment's ``training`` or ``device``."""
        if name not in self.shared:
            node = self.graph.create_node("get_attr", name)
            node.meta["info"] = NodeInfo(
                id=f"state:{name}", kind="constant", module="", source=""
            )
            self.shared[name] = node
        return self.shared[name]

    def _by_mode(self, value: ByMode) -> fx.Node:
        # Compared as text: True == 1, and they are different arguments.
        key = ("by_mode", repr(value))
        if key not in self.shared:
            training = self._state("training")
            args = (training, self._leaf(value.train), self._leaf(value.eval))
            node = self.graph.call_function(by_mode, args)
            node.meta["info"] = NodeInfo(
                id=f"mode:{value.train}|{value.eval}",
                kind="constant",
                module="",
                source="",
            )
            self.shared[key] = node
        return self.shared[key]

    def _free_size(self, number: int) -> fx.Node:
        key = ("size", number)
        if key not in self.shared:
            index, dim = self.sizes[number].dims[0]
            node = self.graph.call_method("size", (self.inputs[index], dim))
            self.shared[key] = self._as_size(node, f"size:{number}")
        return self.shared[key]

    def _size_expression(self, value: SizeExpr) -> Any:
        key = ("expression", value)
        if key in self.shared:
            return self.shared[key]
        total: Any = None
        for coefficient, factors in value.terms:
            term: Any = None
            for number in factors:
                factor = self._free_size(number)
                term = factor if term is None else self._integer("mul", term, factor)
            if coefficient != 1:
                term = self._integer("mul", term, coefficient)
            total = term if total is None else self._integer("add", total, term)
        if value.offset:
            total = self._integer("add", total, value.offset)
        if value.divisor != 1:
            total = self._integer("floordiv", total, value.divisor)
        self.shared[key] = total
        return total

    def _integer(self, name: str, left: Any, right: Any) -> fx.Node:
        node = self.graph.call_function(getattr(operator, name), (left, right))
        names = (getattr(left, "name", left), getattr(right, "name", right))
        return self._as_size(node, f"size:{name}({names[0]},{names[1]})")

    def _as_size(self, node: fx.Node, identity: str) -> fx.Node:
        node.meta["info"] = NodeInfo(id=identity, kind="size", module="", source="")
        return node

    # -- spans ------------------------------------------------------------------------

    def _span(self, record: SpanRecord) -> Span:
        inside = [
            node
            for index in range(record.start, record.end)
            for node in self.calls[index]
            if node.meta["info"].kind != "weight"
        ]
        outputs = [
            (path, self.nodes[leaf])
            for path, leaf in tensor_paths(record.output)
            if leaf in self.nodes
        ]
        return Span(
            path=record.path,
            call=record.call,
            nodes=frozenset(inside),
            args=() if record.opened_because else self.convert(record.args),
            kwargs={} if record.opened_because else self.convert(record.kwargs),
            outputs=tuple(outputs),
            region=record.region,
            opened_because=record.opened_because,
            parent=record.parent,
        )


def _used_refs(recording: Recording) -> set[Ref]:
    used = {leaf for leaf in leaves(recording.output) if isinstance(leaf, Ref)}
    for call in recording.calls:
        used.update(refs((call.args, call.kwargs)))
    for span in recording.spans:
        used.update(refs((span.args, span.kwargs)))
        used.update(leaf for leaf in leaves(span.output) if isinstance(leaf, Ref))
    return used
