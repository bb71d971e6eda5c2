"""Make nodes and blocks callable on real tensors, as a stage will run them."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from partitioner.capture.fakes import caches_off
from partitioner.cost.measure.timing import Call
from partitioner.graph import info
from partitioner.runtime.ops import in_region

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from partitioner.cost.measure.values import Values
    from partitioner.graph import ModelGraph, Region, Span

__all__ = ["Calls"]

_SPREAD = 0.02
"""Standard deviation of the weights: activations stay finite through a block."""


class Calls:
    """Makes calls of one graph's nodes and blocks.

    Args:
        graph: The recorded model; its weights are copied, never run.
        values: Arguments in place of nodes.
        device: Where everything runs.
    """

    def __init__(self, graph: ModelGraph, values: Values, device: torch.device) -> None:
        self._graph = graph
        self._values = values
        self._device = device

    def node(self, node: fx.Node) -> Call:
        """Return the call of one operation or leaf module."""
        args, kwargs, leaves = self._values.arguments(node.args, node.kwargs)
        call: Any
        if node.op == "call_module":
            call = self.module(str(node.target))
            leaves += tuple(p for p in call.parameters() if p.requires_grad)
        elif node.op == "call_method":
            call = _method(str(node.target))
        else:
            call = node.target
        return self._call(
            call, (args, kwargs), leaves, info(node).region, writes=_writes(node)
        )

    def block(self, span: Span, *, compiled: bool) -> Call:
        """Return the call of a repeated module as a whole."""
        args, kwargs, leaves = self._values.arguments(span.args, span.kwargs)
        module = self.module(span.path)
        leaves += tuple(p for p in module.parameters() if p.requires_grad)
        call: Any = torch.compile(module) if compiled else module
        writes = any(map(_writes, span.nodes))
        return self._call(call, (args, kwargs), leaves, span.region, writes=writes)

    def opened(self, span: Span, *, compiled: bool) -> Call:
        """Return the same block as its operations, one after the other."""
        nodes = [
            node
            for node in self._graph.graph.nodes
            if node in span.nodes and not _steers(node)
        ]
        outer = _read_from_outside(nodes)
        args, kwargs, leaves = self._values.arguments(tuple(outer), {})
        module = self.module(span.path)
        leaves += tuple(p for p in module.parameters() if p.requires_grad)
        body = _as_module(module, span, nodes, outer)
        call: Any = torch.compile(body) if compiled else body
        writes = any(map(_writes, nodes))
        return self._call(call, (args, kwargs), leaves, span.region, writes=writes)

    def module(self, path: str) -> nn.Module:
        """Return a copy of a module with random weights, in train mode."""
        original = self._graph.model.get_submodule(path)
        # Configurations are shared: a copy would not see that its cache is off.
        shared = {id(config): config for config in self._graph.configs}
        found = copy.deepcopy(original, shared).to_empty(device=self._device)
        if not self._graph.model.training:
            found.train()
        with torch.no_grad():
            for parameter in found.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(self._graph.dtype)
                    parameter.normal_(std=_SPREAD)
                else:
                    parameter.zero_()
            for buffer in found.buffers():
                buffer.fill_(1)
        return found

    def _call(
        self,
        function: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        leaves: tuple[Tensor, ...],
        region: Region,
        *,
        writes: bool,
    ) -> Call:
        def run(given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
            args, kwargs = given
            with self._modes():
                return in_region(
                    region.grad_enabled, region.autocast, function, *args, **kwargs
                )

        def inputs() -> Any:
            return fx.node.map_aggregate(arguments, _clone) if writes else arguments

        return Call(run=run, inputs=inputs, leaves=leaves)

    def _modes(self) -> AbstractContextManager[Any]:
        configs = self._graph.configs
        return caches_off(configs) if configs else nullcontext()


def _writes(node: fx.Node) -> bool:
    return bool(info(node).writes)


def _steers(node: fx.Node) -> bool:
    """Whether the node is the segment's own mode or device."""
    return node.op == "get_attr" and node.target in {"training", "device"}


def _clone(value: Any) -> Any:
    """Copy a tensor: autograd refuses writes in place to a leaf."""
    return value.clone() if isinstance(value, Tensor) else value


def _method(name: str) -> Any:
    return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)


def _read_from_outside(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    found = dict.fromkeys(
        source
        for node in nodes
        for source in node.all_input_nodes
        if source not in inside
    )
    return list(found)


def _as_module(
    module: nn.Module, span: Span, nodes: Sequence[fx.Node], outer: Sequence[fx.Node]
) -> fx.GraphModule:
    """Write the nodes of a block as a module of their own, over ``module``'s parts."""
    graph = fx.Graph()
    made = {node: graph.placeholder(node.name) for node in outer}
    for node in nodes:
        new = graph.node_copy(node, made.__getitem__)
        if node.op in {"call_module", "get_attr"}:
            new.target = str(node.target).removeprefix(f"{span.path}.")
        made[node] = new
    graph.output(tuple(made[node] for _, node in span.outputs))
    return fx.GraphModule(module, graph)
