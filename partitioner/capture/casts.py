"""Casts that a pipeline does otherwise: at every reader, and of parameters alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import fx

__all__ = ["cast_notes", "mixed_statistics", "statistics_notes"]


def cast_notes(
    graph: fx.Graph, model: nn.Module, aliases: Mapping[str, str]
) -> list[str]:
    """Say which weights are read more than once under autocast.

    Inside one autocast, torch keeps a weight's cast: its readers' gradients are summed
    in the coarse dtype. Node by node, each reader casts for itself and the sum is in
    the weight's own dtype: finer, and not the same to the last bit.

    Args:
        graph: Nodes with their facts.
        model: Whose weights they read.
        aliases: Every name of a weight → its first name.
    """
    readers: dict[str, int] = {}
    for node in graph.nodes:
        if info(node).region.autocast and info(node).kind != "constant":
            for name in _weights_read(node, model):
                first = aliases.get(name, name)
                readers[first] = readers.get(first, 0) + 1
    shared = [name for name, count in readers.items() if count > 1]
    if not shared:
        return []
    more = f" and {len(shared) - 3} more" if len(shared) > 3 else ""  # noqa: PLR2004 - enough to find them
    return [
        f"autocast: {', '.join(shared[:3])}{more} are read more than once under "
        "autocast: their gradients are summed in their own dtype and not, as by "
        "torch's cache of casts, in the coarser one; verify with a tolerance of that "
        "dtype's rounding"
    ]


def mixed_statistics(model: nn.Module, dtype: torch.dtype) -> list[str]:
    """Return the batch norms that torch's kernels will refuse in a dtype.

    DeepSpeed casts parameters and leaves buffers as they are, and a batch norm whose
    weight has another dtype than its running statistics has no kernel.

    Args:
        model: The user's model.
        dtype: What the engine will cast floating parameters to.
    """
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, _NormBase)
        and isinstance(module.weight, nn.Parameter)
        and module.running_mean is not None
        and module.running_mean.dtype != dtype
    ]


def statistics_notes(model: nn.Module, dtype: torch.dtype | None) -> list[str]:
    """Say which batch norms will not train in the dtype of the plan.

    Args:
        model: The user's model.
        dtype: What its parameters are cast to; None: they stay as they are.
    """
    mixed = [] if dtype is None else mixed_statistics(model, dtype)
    if not mixed:
        return []
    return [
        f"batch norm: {mixed[0]} ({len(mixed)} in all) keeps its running statistics in "
        f"another dtype than {str(dtype).removeprefix('torch.')}, to which only "
        "parameters are cast: this plan has prices, but cannot be trained; cast the "
        f"whole model before, model.to({dtype})"
    ]


def _weights_read(node: fx.Node, model: nn.Module) -> list[str]:
    if node.op == "call_module":
        path = str(node.target)
        module = model.get_submodule(path)
        return [
            f"{path}.{name}"
            for name, weight in module.named_parameters()
            if weight.is_floating_point()
        ]
    return [
        str(source.target)
        for source in node.all_input_nodes
        if source.op == "get_attr" and info(source).kind == "weight"
    ]
