"""Kernels that add gradients up: they belong to no operator, and are not free."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from partitioner.cost.kernels import Kernel
from partitioner.cost.units import takes_part
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

    from partitioner.cost.weights import Weight

__all__ = ["accumulations", "result_sums", "trains"]

_ADD_TENSORS = 3
"""A sum reads two tensors and writes one."""


def trains(node: fx.Node) -> bool:
    """Whether a result of the node gets a gradient."""
    return any(meta.requires_grad for meta in info(node).outputs)


def accumulations(weights: Iterable[Weight]) -> Counter[Kernel]:
    """Return the kernels that add one micro-batch's gradients to the parameters' sums.

    In whatever dtype: DeepSpeed's own engine moves seven tensors for bfloat16, ours
    moves three (``runtime/gradient_sums.py``).

    Args:
        weights: What a node reads.
    """
    return Counter(
        Kernel(nbytes=_ADD_TENSORS * weight.nbytes)
        for weight in weights
        if weight.trainable
    )


def result_sums(node: fx.Node) -> Counter[Kernel]:
    """Return the kernels that add up what several readers of a result send back."""
    readers = sum(trains(user) and not takes_part(user) for user in node.users)
    if not trains(node) or readers < 2:  # noqa: PLR2004 (one reader needs no sum)
        return Counter()
    nbytes = sum(meta.nbytes for meta in info(node).outputs)
    return Counter({Kernel(nbytes=_ADD_TENSORS * nbytes): readers - 1})
