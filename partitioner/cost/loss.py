"""What a loss function costs that is no part of the model: time and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from partitioner.capture import capture
from partitioner.capture.inputs import CallArguments
from partitioner.capture.tree import rebuild, relabel
from partitioner.costed import NodeCost
from partitioner.errors import CaptureError, CostError, OptionError
from partitioner.graph import TensorMeta, info
from partitioner.runtime.memory_order import in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.costed import CostedGraph
    from partitioner.graph import ModelGraph

__all__ = ["Loss", "counted", "loss_graph", "with_loss"]

_BLOCK = "loss."
"""Begins the paths of what is the loss's own."""
_HINT = "leave loss_fn out of partition(): the plan then knows nothing of its cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss that the engine computes from the model's output.

    Args:
        function: ``function(output, labels)``, as for ``plan.initialize``.
        labels: Of one micro-batch.
    """

    function: Callable[[Any, Any], Any]
    labels: Any

    @classmethod
    def of(cls, function: Any, labels: Any) -> Loss | None:
        """Check what the user gave; None if nothing was given.

        Raises:
            OptionError: One of both is missing, or the function cannot be called.
        """
        if function is None and labels is None:
            return None
        if function is None or labels is None:
            missing = "loss_fn" if function is None else "example_labels"
            message = f"{missing} is missing: the loss is priced on labels"
            raise OptionError(message, hint="give loss_fn and example_labels, or none")
        if not callable(function):
            message = f"loss_fn is a {type(function).__name__}"
            raise OptionError(message, hint="give a function of (output, labels)")
        return cls(function=function, labels=labels)


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands for a tensor in the structure of an output."""

    index: int


class _Wanted(torch.autograd.Function):
    """Hands a tensor on as one whose gradient is wanted."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, parameter: Tensor) -> Tensor:
        ctx.shape = parameter.shape
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_zeros(ctx.shape)


def _wanted(tensor: Tensor, parameter: Tensor) -> Tensor:
    found: Tensor = _Wanted.apply(tensor, parameter)  # type: ignore[no-untyped-call]
    return found


class _Computed(nn.Module):
    """The loss of tensors in the structure of a model's output."""

    def __init__(self, function: Callable[[Any, Any], Any], structure: Any) -> None:
        super().__init__()
        # A copy for timing copies a module's weights, and no object that has a method.
        is_module = isinstance(function, nn.Module)
        self.function = function if is_module else _as_function(function)
        self.structure = structure

    def forward(self, labels: Any, *tensors: Tensor) -> Any:
        def leaf(value: Any) -> Any:
            return tensors[value.index] if isinstance(value, _Place) else value

        return self.function(rebuild(self.structure, leaf), labels)


def _as_function(call: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return call(*args)

    return function


class _Priced(nn.Module):
    """A model that is nothing but a loss: a repeated block, so that it runs whole."""

    def __init__(self, computed: _Computed) -> None:
        super().__init__()
        self.wanted = nn.Parameter(torch.zeros(()))
        self.loss = nn.Sequential(computed)

    def forward(self, labels: Any, *tensors: Tensor) -> Any:
        wanted = (
            _wanted(each, self.wanted) if each.is_floating_point() else each
            for each in tensors
        )
        return self.loss[0](labels, *wanted)


def loss_graph(graph: ModelGraph, loss: Loss) -> ModelGraph:
    """Record a loss on the output of a recorded model.

    Args:
        graph: The model.
        loss: The function and its labels.

    Raises:
        CostError: The loss cannot be recorded on this output.
    """
    places: dict[fx.Node, _Place] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        return places.setdefault(value, _Place(len(places)))

    structure = relabel(graph.output, leaf)
    tensors = tuple(_like(info(node).outputs[0]) for node in places)
    priced = _Priced(_Computed(loss.function, structure))
    try:
        return capture(priced, CallArguments(args=(loss.labels, *tensors), kwargs={}))
    except CaptureError as error:
        message = f"the loss cannot be priced: {error.message}"
        raise CostError(message, hint=_HINT) from error


def _like(meta: TensorMeta) -> Tensor:
    """Return zeros, which take no memory until they are read, and nobody does."""
    return in_order(meta.shape, meta.order, partial(torch.zeros, dtype=meta.dtype))


def with_loss(costed: CostedGraph, loss: CostedGraph) -> CostedGraph:
    """Count a loss on the last stage, where the output is.

    Args:
        costed: The model.
        loss: What :func:`loss_graph` returned, priced.
    """
    inside = (n for n in loss.costs if info(n).module.startswith(_BLOCK))
    total = sum((loss.costs[node] for node in inside), NodeCost())
    cost = replace(total, output_bytes=0, parameter_bytes=0, buffer_bytes=0)
    if costed.measurements and loss.measurements:
        failed = {**costed.measurements.failed, **loss.measurements.failed}
        told = replace(costed.measurements, failed=failed)
        costed = replace(costed, measurements=told)
    return counted(replace(costed, unpriced=costed.unpriced + loss.unpriced), cost)


def counted(costed: CostedGraph, cost: NodeCost) -> CostedGraph:
    """Return the graph with what a loss costs at its output."""
    output = costed.graph.graph.output_node()
    before = costed.costs.get(output, NodeCost())
    return replace(costed, costs={**costed.costs, output: before + cost}, loss=cost)
