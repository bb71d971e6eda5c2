"""Weights that autocast casts once and a pipeline casts at every reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx, nn

__all__ = ["cast_notes"]


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
