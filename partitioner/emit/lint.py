"""What no boundary can carry, named with its source line before anything runs.

Most of what a pipeline could not send never gets this far: a tensor that is sparse or
nested is refused while the model is recorded, and the packed format takes every dense
one. Quantized tensors are left: fake tensors show them as what they stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import EmitError
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from partitioner.graph import ModelGraph

__all__ = ["check_boundary", "quantized_values"]

_PLAIN = ("dequantize", "int_repr", "q_scale", "q_zero_point")


def quantized_values(graph: ModelGraph) -> frozenset[fx.Node]:
    """Return the nodes that make quantized tensors.

    Args:
        graph: The recorded model.
    """
    found: set[fx.Node] = set()
    for node in graph.graph.nodes:
        name = _name(node)
        if name.startswith(_PLAIN):
            continue
        if name.startswith("quantize_per_") or any(
            source in found for source in node.all_input_nodes
        ):
            found.add(node)
    return frozenset(found)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def check_boundary(
    values: Sequence[fx.Node], quantized: frozenset[fx.Node], stage: int
) -> None:
    """Refuse a boundary that a value cannot cross.

    Args:
        values: What crosses.
        quantized: As :func:`quantized_values` returns.
        stage: The stage that sends it.

    Raises:
        EmitError: Names the value, what it is, and the line that makes it.
    """
    for node in values:
        facts = info(node)
        if facts.kind == "size":
            continue
        what = ""
        if len(facts.outputs) != 1:
            what = (
                f"{len(facts.outputs)} tensors in one" if facts.outputs else "no tensor"
            )
        elif node in quantized:
            what = "a quantized tensor"
        if what:
            raise EmitError(
                f"{node.name!r} ({facts.source or facts.id}) leaves stage {stage} for "
                f"the next and is {what}: only a dense tensor can be sent",
                hint="put what makes it and what reads it into one module, and name "
                "that in no_cut_inside",
            )
