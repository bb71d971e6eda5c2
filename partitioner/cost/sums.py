"""Kernels that add gradients up: they belong to no operator, and are not free."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from partitioner.cost.kernels import Kernel, dtype_name
from partitioner.cost.units import takes_part
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import fx

    from partitioner.cost.weights import Weight

__all__ = ["accumulations", "result_sums", "trains"]

_ADD_TENSORS = 3
"""A sum reads two tensors and writes one."""
_UPKEEP_TENSORS = {"bfloat16": 7}
"""Tensors of a parameter's size that one micro-batch moves to keep its gradient.

bfloat16 (DeepSpeed 0.19, ``runtime/bf16_optimizer.py``): ``clear_lp_grads`` writes
one, autograd adds (three), ``_update_hp_grad`` adds to the accumulated one (three).
Otherwise autograd's sum alone.
"""


def trains(node: fx.Node) -> bool:
    """Whether a result of the node gets a gradient."""
    return any(meta.requires_grad for meta in info(node).outputs)


def accumulations(weights: Iterable[Weight], dtype: torch.dtype) -> Counter[Kernel]:
    """Return the kernels that add one micro-batch's gradients to the parameters'.

    Args:
        weights: What a node reads.
        dtype: The engine's.
    """
    tensors = _UPKEEP_TENSORS.get(dtype_name(dtype), _ADD_TENSORS)
    return Counter(
        Kernel(nbytes=tensors * weight.nbytes) for weight in weights if weight.trainable
    )


def result_sums(node: fx.Node) -> Counter[Kernel]:
    """Return the kernels that add up what several readers of a result send back."""
    readers = sum(trains(user) and not takes_part(user) for user in node.users)
    if not trains(node) or readers < 2:  # noqa: PLR2004 (one reader needs no sum)
        return Counter()
    nbytes = sum(meta.nbytes for meta in info(node).outputs)
    return Counter({Kernel(nbytes=_ADD_TENSORS * nbytes): readers - 1})
