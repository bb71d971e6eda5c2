"""The recorded graph, run node by node, next to the model: the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partitioner.capture.session import set_mode
from partitioner.capture.tree import flatten
from partitioner.graph import ModelGraph
from partitioner.verify.compare import error, least_scale
from partitioner.verify.inputs import input_tensors
from partitioner.verify.run import call_with, tensor_leaves
from tests.captured import rerun
from tests.zoo.entry import Entry, built, no_caches, noise, seed_all

__all__ = ["recording_faults"]

TOLERANCE = 1e-5


def recording_faults(entry: Entry, graph: ModelGraph, *, training: bool) -> list[str]:
    """Run the nodes one by one and the model; say where bits or gradients differ."""
    where = "train" if training else "eval"
    faults: list[str] = []
    tensors = input_tensors(graph, None)
    args, kwargs = call_with(graph, [tensor.clone() for tensor in tensors])
    original, copy = built(entry), built(entry)
    for model in (original, copy):
        set_mode(model, training=training)
        no_caches(model)
    seed_all(1)
    expected = original(*args, **kwargs)
    seed_all(1)
    found = rerun(graph, copy, [tensor.clone() for tensor in tensors])
    if type(expected) is not type(found) or structure(expected) != structure(found):
        text = f"{structure(found)}, not {structure(expected)}"
        faults.append(f"{where}: the output is {text}")
    pairs = list(zip(tensor_leaves(expected), tensor_leaves(found), strict=False))
    faults += [
        f"{where}: output {number} of the recorded graph is off by {distance(a, b)}"
        for number, (a, b) in enumerate(pairs)
        if not same(a, b)
    ]
    _backward([a for a, _ in pairs])
    _backward([b for _, b in pairs])
    return faults + [f"{where}: {text}" for text in _state_faults(original, copy)]


def structure(output: Any) -> list[Any]:
    """Return the paths and the values that are no tensors of an output."""
    return [
        (path, "tensor" if isinstance(leaf, Tensor) else leaf)
        for path, leaf in flatten(output)
    ]


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors have the same bits, NaN included."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(
        a.isnan(), b.isnan()
    )


def distance(a: Tensor | None, b: Tensor | None) -> str:
    """Say how far two tensors are apart."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return f"{_kind(a)} against {_kind(b)}"
    if not a.numel() or not a.is_floating_point():
        return "other values"
    return f"{(a - b).abs().max().item():.1e}"


def _kind(a: Tensor | None) -> str:
    return "None" if a is None else f"{a.dtype}{list(a.shape)}"


def _backward(outputs: Sequence[Tensor]) -> None:
    roots = [tensor for tensor in outputs if tensor.requires_grad]
    cotangents = [noise(*tensor.shape).to(tensor.dtype) for tensor in roots]
    if roots:
        torch.autograd.backward(roots, cotangents)


def _state_faults(original: nn.Module, copy: nn.Module) -> list[str]:
    gradients = {name: p.grad for name, p in copy.named_parameters()}
    buffers = dict(copy.named_buffers())
    least = least_scale(p.grad for p in original.parameters())
    return [
        f"gradient of {name} is off by {distance(p.grad, gradients[name])}"
        for name, p in original.named_parameters()
        if not close(p.grad, gradients[name], least)
    ] + [
        f"buffer {name} is off by {distance(buffer, buffers[name])}"
        for name, buffer in original.named_buffers()
        if not same(buffer, buffers[name])
    ]


def close(a: Tensor | None, b: Tensor | None, least: float) -> bool:
    """Whether two gradients differ by no more than the order of a sum.

    Args:
        a: The original's.
        b: The recorded graph's.
        least: Least scale that the difference is relative to.
    """
    if a is None or b is None:
        present = b if a is None else a
        return present is None or not present.any()
    return same(a, b) or error(a, b, least) <= TOLERANCE
