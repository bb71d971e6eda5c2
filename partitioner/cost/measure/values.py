"""Real tensors in place of a graph's nodes, of the recorded shapes, on one device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx

from partitioner.graph import ModelGraph, TensorMeta, info
from partitioner.runtime.memory_order import in_order
from partitioner.runtime.ops import in_region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Values"]

_COMPUTED = frozenset({"constant", "size"})


class Values:
    """Gives every node a value like the one it has in training.

    What depends on no weight (positions, masks, sizes) is computed from the example
    inputs; everything else is random numbers.

    Args:
        graph: The recorded model.
        device: Where the tensors live.
    """

    def __init__(self, graph: ModelGraph, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        self._computed: dict[fx.Node, Any] = {}
        self._weightless: dict[fx.Node, bool] = {}
        nodes = graph.graph.find_nodes(op="placeholder")
        self._inputs = dict(zip(nodes, graph.inputs, strict=True))

    def arguments(
        self, args: Any, kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Tensor, ...]]:
        """Put values in place of nodes.

        Args:
            args: Arguments as fx arguments.
            kwargs: Keyword arguments likewise.

        Returns:
            The arguments, and the tensors among them that get a gradient.
        """
        made: dict[fx.Node, Any] = {}

        def value(node: fx.Node) -> Any:
            if node not in made:
                made[node] = self.value(node)
            return made[node]

        given, named = fx.map_arg((tuple(args), dict(kwargs)), value)
        found = [one for one in made.values() if isinstance(one, Tensor)]
        return given, named, tuple(one for one in found if one.requires_grad)

    def value(self, node: fx.Node) -> Any:
        """Return the value of one node; a tensor that gets a gradient is a new leaf."""
        if self._needs_no_weight(node):
            return self._compute(node)
        outputs = info(node).outputs
        if not outputs:
            return self._compute(node)
        if len(outputs) > 1:
            return tuple(map(self._random, outputs))
        source = _viewed(node)
        if source is None:
            return self._random(outputs[0])
        # A view has the strides that its operation gives it: kernels depend on them.
        viewed = self._view(node, source, self.value(source).detach())
        return viewed.requires_grad_(outputs[0].requires_grad)

    def _view(self, node: fx.Node, source: fx.Node, value: Tensor) -> Tensor:
        def given(read: fx.Node) -> Any:
            return value if read is source else self._compute(read)

        args, kwargs = fx.map_arg((node.args, node.kwargs), given)
        with torch.no_grad():
            viewed: Tensor = _callable(self._graph, node)(*args, **kwargs)
        return viewed.detach()

    def _needs_no_weight(self, node: fx.Node) -> bool:
        """Whether only inputs and constants are above ``node``, and no random draw."""
        if node not in self._weightless:
            facts = info(node)
            self._weightless[node] = (
                facts.kind != "weight"
                and not facts.draws
                and not any(meta.requires_grad for meta in facts.outputs)
                and all(map(self._needs_no_weight, node.all_input_nodes))
            )
        return self._weightless[node]

    def _compute(self, node: fx.Node) -> Any:
        if node not in self._computed:
            self._computed[node] = self._run(node)
        return self._computed[node]

    def _run(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._example(node)
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._compute)
        region = info(node).region
        with torch.device(self._device), torch.no_grad():
            call = _callable(self._graph, node)
            return in_region(True, region.autocast, call, *args, **kwargs)

    def _attribute(self, name: str) -> Any:
        if name == "training":
            return True
        if name == "device":
            return self._device
        return self._graph.constants[name].to(self._device)

    def _example(self, node: fx.Node) -> Tensor:
        found: Any = dict(zip(("args", "kwargs"), self._graph.example, strict=True))
        for step in self._inputs[node].path:
            found = found[step]
        tensor = cast("Tensor", found)
        meta = info(node).outputs[0]
        if tensor.device.type == "meta":
            return self._random(meta)
        return tensor.detach().to(self._device, meta.dtype)

    def _random(self, meta: TensorMeta) -> Tensor:
        make: Callable[..., Tensor] = torch.zeros
        if meta.dtype.is_floating_point or meta.dtype.is_complex:
            make = torch.randn
        elif meta.dtype is torch.bool:
            make = torch.ones
        made = partial(make, dtype=meta.dtype, device=self._device)
        return in_order(meta.shape, meta.order, made).requires_grad_(meta.requires_grad)


def _viewed(node: fx.Node) -> fx.Node | None:
    """Return what a node is a view of, if all else it reads is plain numbers."""
    if node.op not in {"call_function", "call_method"} or info(node).writes:
        return None
    tensors = [one for one in node.all_input_nodes if info(one).outputs]
    if len(tensors) != 1 or len(info(tensors[0]).outputs) != 1:
        return None
    (source,) = tensors
    same = info(source).outputs[0].storage == info(node).outputs[0].storage
    return source if same and info(source).kind != "weight" else None


def _callable(graph: ModelGraph, node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_module":
        found: Callable[..., Any] = graph.model.get_submodule(str(node.target))
        return found
    if node.op == "call_method":
        name = str(node.target)
        return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)
    return cast("Callable[..., Any]", node.target)
