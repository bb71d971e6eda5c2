"""Through which values a gradient comes back from the model's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from partitioner.graph import ModelGraph, TensorMeta, info

if TYPE_CHECKING:
    from torch import fx

__all__ = ["differentiable_values", "requires_grad"]


def requires_grad(node: fx.Node) -> bool:
    """Whether autograd follows what ``node`` makes."""
    return any(map(_requires_grad, info(node).outputs))


def _requires_grad(meta: TensorMeta) -> bool:
    has_gradient = meta.dtype.is_floating_point or meta.dtype.is_complex
    return meta.requires_grad and has_gradient


def differentiable_values(graph: ModelGraph) -> frozenset[fx.Node]:
    """Return the nodes whose results get a gradient from some output of the model.

    What no output depends on gets none in the original: what its producers saved may
    be written in place. So a boundary must send it without a gradient. What a leaf that
    differentiates by itself reads counts too, and a write changes all that shares the
    memory.
    """
    groups: dict[fx.Node, list[frozenset[fx.Node]]] = {}
    for group in graph.groups:
        for node in group:
            groups.setdefault(node, []).append(group)
    output = graph.graph.output_node()
    waiting = [node for node in output.all_input_nodes if requires_grad(node)]
    waiting += [
        source
        for node in graph.graph.nodes
        if _may_differentiate(graph, node)
        for source in node.all_input_nodes
        if requires_grad(source)
    ]
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        near = {*node.all_input_nodes, *(n for g in groups.get(node, ()) for n in g)}
        # Some writes have no result (``h[0] = x``).
        waiting += [n for n in near if requires_grad(n) or info(n).writes]
    return frozenset(node for node in found if requires_grad(node))


def _may_differentiate(graph: ModelGraph, node: fx.Node) -> bool:
    """Whether a leaf computes gradients in its forward, and hands on none."""
    if node.op != "call_module" or requires_grad(node):
        return False
    if info(node).differentiates:
        return True
    # What TorchScript calls was not seen.
    inner = graph.model.get_submodule(str(node.target)).modules()
    return any(isinstance(module, torch.jit.ScriptModule) for module in inner)
