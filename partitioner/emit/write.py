"""Write the fx graph of one segment, or of the loss part, and gather its weights."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from torch import fx, nn

from partitioner.emit.flow import closure
from partitioner.emit.fuse import Call, result_paths
from partitioner.errors import EmitError
from partitioner.graph import ModelGraph, Region, Span, info
from partitioner.runtime.compiled_blocks import BLOCK
from partitioner.runtime.generated_code import ORIGIN
from partitioner.runtime.ops import in_region
from partitioner.runtime.segment import SegmentBody

__all__ = ["Seeder", "write_segment"]

Seeder = Callable[..., Any]
"""``seeder(key, function, *args, **kwargs)``: seed for one draw, then call."""


class _Writer:
    """Writes one graph; maps recorded nodes to its own."""

    def __init__(
        self, graph: ModelGraph, position: Mapping[fx.Node, int], seeder: Seeder | None
    ) -> None:
        self.source = graph
        self.position = position
        self.seeder = seeder
        self.graph = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}
        self.modules: dict[str, nn.Module] = {}
        self.parameters: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, tuple[Any, bool]] = {}

    def receive(self, values: Sequence[fx.Node]) -> None:
        """Make a placeholder for each incoming value."""
        for node in values:
            self.made[node] = self.graph.placeholder(node.name)

    def rebuild(self, sources: Iterable[fx.Node]) -> None:
        """Make the constants, sizes and weights that ``sources`` stand on."""
        values, rebuilt = closure(sources)
        for node in values:
            if node not in self.made and info(node).kind == "size":
                self._copy(node)
        for node in sorted(rebuilt, key=self.position.__getitem__):
            if node not in self.made:
                self._copy(node)

    def run(self, call: Call, block: int) -> None:
        """Write one step, and note with which others it is compiled."""
        before = len(self.graph.nodes)
        if call.span is not None:
            self._call_whole(call.span, call.nodes)
        else:
            self._copy(call.nodes[0])
        for node in islice(self.graph.nodes, before, None):
            node.meta[BLOCK] = block

    def finish(self, values: Sequence[fx.Node]) -> None:
        """Return the values as a tuple."""
        self.graph.output(tuple(self.made[node] for node in values))
        self.graph.lint()

    # -- nodes ----------------------------------------------------------------------

    def _convert(self, tree: Any) -> Any:
        return fx.map_arg(tree, lambda node: self.made[node])

    def _copy(self, node: fx.Node) -> None:
        facts = info(node)
        if node.op == "get_attr":
            self.made[node] = self._weight(node)
            return
        args, kwargs = self._convert(node.args), self._convert(node.kwargs)
        if node.op == "call_module":
            target = str(node.target)
            self.modules[target] = self.source.model.get_submodule(target)
        key = facts.draw_key if facts.draws else ""
        made = self._call(
            node.op, node.target, args, kwargs, region=facts.region, key=key
        )
        made.meta[ORIGIN] = (facts.module, facts.source)
        self.made[node] = made

    def _weight(self, node: fx.Node) -> fx.Node:
        target = str(node.target)
        if target not in ("training", "device"):
            self._hold(target)
        return self.graph.create_node("get_attr", target)

    def _hold(self, target: str) -> None:
        """Keep the parameter, buffer or constant with its original name."""
        if target in self.source.constants:
            self.buffers[target] = (self.source.constants[target], False)
            return
        path, _, name = target.rpartition(".")
        owner = self.source.model.get_submodule(path)
        weight = getattr(owner, name)
        if isinstance(weight, nn.Parameter):
            self.parameters[target] = weight
            return
        persistent = name not in owner._non_persistent_buffers_set  # noqa: SLF001 - nn.Module's own
        self.buffers[target] = (weight, persistent)

    def _call(
        self, op: str, target: Any, args: Any, kwargs: Any, *, region: Region, key: str
    ) -> fx.Node:
        """Write a call, inside its region and seeded if asked."""
        wrap = region != Region() or (key and self.seeder is not None)
        if not wrap:
            return self.graph.create_node(op, target, args, kwargs)
        if op == "call_module":
            function = self.graph.create_node("get_attr", target)
            args = (function, *args)
        wrapped = _wrapped(op, target, region, key, self.seeder)
        return self.graph.call_function(wrapped, args, kwargs)

    def _call_whole(self, span: Span, nodes: Sequence[fx.Node]) -> None:
        self.modules[span.path] = self.source.model.get_submodule(span.path)
        draws = any(info(node).draws for node in nodes)
        result = self._call(
            "call_module",
            span.path,
            self._convert(span.args),
            self._convert(dict(span.kwargs)),
            region=span.region,
            key=span.id if draws else "",
        )
        for node, path in result_paths(span).items():
            if node not in self.made:
                self.made[node] = self._descend(result, path)

    def _descend(self, node: fx.Node, path: tuple[tuple[str, Any], ...]) -> fx.Node:
        for how, what in path:
            function = operator.getitem if how == "item" else getattr
            node = self.graph.call_function(function, (node, what))
        return node


def _wrapped(
    op: str, target: Any, region: Region, key: str, seeder: Seeder | None
) -> Callable[..., Any]:
    """Return one function that enters the region, seeds, and calls.

    A module is its first argument. Generated code names functions, it cannot hold
    them as arguments: hence one function for each such call.
    """
    steps: list[Any] = []
    if key and seeder is not None:
        steps += [seeder, key]
    if region != Region():
        steps += [in_region, region.grad_enabled, region.autocast]
    if op == "call_function":
        steps += [target]
    elif op == "call_method":
        steps += [_call_method, target]
    else:
        steps += [_call_module]
    function, *first = steps
    inner = partial(function, *first)

    def call(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    name = target if isinstance(target, str) else getattr(target, "__name__", "call")
    call.__name__ = call.__qualname__ = f"{name}_in_region"
    return call


def _call_method(name: str, owner: Any, /, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def _call_module(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def write_segment(
    graph: ModelGraph,
    name: str,
    calls: Sequence[Call],
    incoming: Sequence[fx.Node],
    outgoing: Sequence[fx.Node],
    *,
    blocks: Sequence[int] = (),
    checkpointed: bool = False,
    later: Collection[fx.Node] = (),
    seeder: Seeder | None = None,
) -> SegmentBody:
    """Write the graph of one segment.

    Args:
        graph: The recorded model.
        name: Name of the segment for messages.
        calls: Its steps, in order.
        incoming: Values it receives.
        outgoing: Values it returns.
        blocks: For each step the number of the block it is compiled in; empty: one.
        checkpointed: Whether its activations are recomputed.
        later: Values whose memory a later segment of the stage writes in place.
        seeder: Wraps every random draw (used by verification), or None.

    Raises:
        EmitError: The generated graph is not sound.
    """
    position = {node: index for index, node in enumerate(graph.graph.nodes)}
    writer = _Writer(graph, position, seeder)
    writer.receive(incoming)
    writer.rebuild([*outgoing, *(node for call in calls for node in call.reads())])
    for call, block in zip(calls, blocks or [0] * len(calls), strict=True):
        writer.run(call, block)
    missing = [node.name for node in outgoing if node not in writer.made]
    if missing:
        message = f"segment {name} does not make {', '.join(missing)}"
        raise EmitError(message, hint="please report this plan")
    writer.finish(outgoing)
    return SegmentBody(
        name=name,
        graph=writer.graph,
        modules=writer.modules,
        parameters=writer.parameters,
        buffers=writer.buffers,
        checkpointed=checkpointed,
        written_later=frozenset(i for i, node in enumerate(incoming) if node in later),
        configs=graph.configs,
        frozen=_frozen(graph.model, writer.modules),
    )


def _frozen(model: nn.Module, modules: Mapping[str, nn.Module]) -> frozenset[str]:
    """Return the modules that the user put in eval mode inside a model in training."""
    if not model.training:
        return frozenset()
    return frozenset(
        f"{path}.{name}" if name else path
        for path, module in modules.items()
        for name, inner in module.named_modules()
        if not inner.training
    )
