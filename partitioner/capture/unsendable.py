"""Values that no stage boundary can carry.

Most of what a pipeline could not send never gets this far: a tensor that is sparse or
nested is refused while the model is recorded, and the packed format takes every dense
one. Quantized tensors are left (fake tensors show them as what they stand for), and
results that are no tensor, or several in one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from partitioner.graph import ModelGraph

__all__ = ["unsendable_values"]

_PLAIN = ("dequantize", "int_repr", "q_scale", "q_zero_point")


def unsendable_values(graph: ModelGraph) -> Mapping[fx.Node, str]:
    """Return what cannot cross a boundary, and what it is.

    Args:
        graph: The recorded model.
    """
    found: dict[fx.Node, str] = {}
    quantized: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op == "output" or info(node).kind == "size":
            continue
        if _is_quantized(node, quantized):
            quantized.add(node)
            found[node] = "a quantized tensor"
        count = len(info(node).outputs)
        if count != 1:
            found[node] = f"{count} tensors in one" if count else "no tensor"
    return found


def _is_quantized(node: fx.Node, quantized: set[fx.Node]) -> bool:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name.startswith(_PLAIN):
        return False
    return name.startswith("quantize_per_") or not quantized.isdisjoint(
        node.all_input_nodes
    )
