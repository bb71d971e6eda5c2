"""Which parameters, buffers and captured tensors each node reads, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from partitioner.graph import ModelGraph

__all__ = ["Weight", "read_weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter or buffer under its canonical name."""

    name: str
    numel: int
    itemsize: int
    """Bytes of one element in the engine's type (float buffers keep their own)."""
    is_parameter: bool
    trainable: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor itself."""
        return self.numel * self.itemsize


def read_weights(graph: ModelGraph) -> Mapping[fx.Node, tuple[Weight, ...]]:
    """Return the weights each node reads: as arguments, or as a leaf module's own.

    Weight nodes themselves are no readers. A name that ``graph.aliases`` maps to
    another counts as that other one, so tied parameters compare equal.
    """
    tensors: dict[str, torch.Tensor] = {
        **dict(graph.model.named_parameters(remove_duplicate=False)),
        **dict(graph.model.named_buffers(remove_duplicate=False)),
        **graph.constants,
    }
    known: dict[str, Weight] = {}

    def weight(name: str) -> Weight:
        canonical = graph.aliases.get(name, name)
        if canonical not in known:
            known[canonical] = _weight(canonical, tensors[canonical], graph.dtype)
        return known[canonical]

    return {
        node: tuple(dict.fromkeys(weight(name) for name in _names(graph, node)))
        for node in graph.graph.nodes
    }


def _names(graph: ModelGraph, node: fx.Node) -> list[str]:
    names = [
        str(source.target)
        for source in node.all_input_nodes
        if info(source).kind == "weight" and source.op == "get_attr"
    ]
    if node.op == "call_module":
        leaf = graph.model.get_submodule(str(node.target))
        own = [*leaf.named_parameters(), *leaf.named_buffers()]
        names += [f"{node.target}.{name}" for name, _ in own]
    return names


def _weight(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> Weight:
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    cast = is_parameter and tensor.is_floating_point()
    return Weight(
        name=name,
        numel=tensor.numel(),
        itemsize=dtype.itemsize if cast else tensor.dtype.itemsize,
        is_parameter=is_parameter,
        trainable=is_parameter and tensor.requires_grad,
    )
