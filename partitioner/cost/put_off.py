"""What weight gradients hold while zero bubble puts them off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from partitioner.cost.sums import trains
from partitioner.cost.weights import read_weights
from partitioner.graph import info
from partitioner.runtime.weight_gradients import WEIGHT_AT

if TYPE_CHECKING:
    from collections.abc import Collection

    from partitioner.graph import ModelGraph

__all__ = ["put_off_bytes"]

_Convolution = (
    nn.Conv1d | nn.Conv2d | nn.Conv3d
    | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
)  # fmt: skip


def put_off_bytes(graph: ModelGraph, nodes: Collection[fx.Node]) -> int:
    """Return the bytes that one micro-batch's weight gradients wait with.

    What a layer was given, once for all layers that share it, and the gradient of what
    it made; what is no linear layer keeps its result as well. A module that was not
    recorded through, with such layers inside, is taken to keep all that it saves.

    Args:
        graph: The recorded model.
        nodes: What a stage runs, without what it recomputes.
    """
    weights = read_weights(graph)
    given: dict[int, int] = {}
    made_bytes = 0
    for node in nodes:
        copies = _copies(graph, node)
        if copies and trains(node) and any(w.trainable for w in weights[node]):
            given.update(info(node).saved)
            made_bytes += copies * sum(meta.nbytes for meta in info(node).outputs)
    return sum(given.values()) + made_bytes


def _copies(graph: ModelGraph, node: fx.Node) -> int:
    """Return how many tensors of the result's size wait; 0: nothing is put off."""
    if node.op == "call_module":
        module = graph.model.get_submodule(str(node.target))
        if isinstance(module, nn.Linear | _Convolution):
            given = [arg for arg in node.args[:1] if isinstance(arg, fx.Node)]
            if not all(map(trains, given)):
                return 0
            return 1 if isinstance(module, nn.Linear) else 2
        # What it is given may be ids, and yet its layers wait.
        inside = nn.Linear | _Convolution | nn.MultiheadAttention
        return 2 if any(isinstance(each, inside) for each in module.modules()) else 0
    function: Any = node.target
    place = WEIGHT_AT.get(function) if node.op == "call_function" else None
    if place is None or len(node.args) <= place:
        return 0
    source, weight = node.args[place - 1], node.args[place]
    known = isinstance(weight, fx.Node) and weight.op == "get_attr"
    if not known or not isinstance(source, fx.Node) or not trains(source):
        return 0
    return 1 if node.target is F.linear else 2
