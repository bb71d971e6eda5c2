"""Bytes that a stage holds for its parameters, in training and in the optimizer's step.

Per element of a trainable parameter under DeepSpeed 0.19 (ZeRO off), the optimizer's
states (4 bytes each, see ``OPTIMIZER_STATES``) not counted:

========  ======  ========  ======  ===========  ==============
type      weight  gradient  master  accumulated  in a step also
========  ======  ========  ======  ===========  ==============
float32   4       4         –       –            4
bfloat16  2       2         4       2            8
float16   2       2         4       –            8
========  ======  ========  ======  ===========  ==============

bfloat16: ``runtime/bf16_optimizer.py: BF16_Optimizer._setup_for_real_optimizer``
(``fp32_groups_flat_partition``; ``fp32_groups_gradients_flat`` in the type in which
gradients accumulate, the parameters' unless configured). float16:
``runtime/fp16/fused_optimizer.py: FP16_Optimizer`` (``fp32_groups_flat``). In a step
both cast the gradients to float32 (4), and torch's ``foreach`` Adam takes the square
root of all second moments at once (4). On an H200 the allocator held 16.1 bytes per
bfloat16 parameter between steps of AdamW (its gradient is freed then), and 12.1 per
float32 parameter. A frozen parameter or a buffer is its weight alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partitioner.cost.units import Units
    from partitioner.cost.weights import Weight
    from partitioner.costed import CostedGraph

__all__ = ["OPTIMIZER_STATES", "Engine", "optimizer_states", "reserved_bytes"]

OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd-momentum": 1, "sgd": 0}
"""Tensors of a parameter's size that each optimizer keeps."""

FULL_ITEMSIZE = 4
"""Bytes of a float32 element: the type in which optimizers compute."""

_SCRATCH = {"adam": 1, "adamw": 1, "sgd-momentum": 0, "sgd": 0}
"""Tensors of a parameter's size that each optimizer allocates in its step."""

EXCEPTIONS = 16
"""Units that state what their own backward holds for a moment."""

_ACCUMULATES = frozenset({torch.bfloat16})
"""Types whose engine keeps the accumulated gradient beside the micro-batch's own."""


def optimizer_states(optimizer: str) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps.

    Raises:
        OptionError: The optimizer is not known.
    """
    return OPTIMIZER_STATES[_known(optimizer)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What DeepSpeed's engine holds for parameters and buffers.

    Args:
        dtype: The type it trains in.
        optimizer: Key of ``OPTIMIZER_STATES``.

    Raises:
        OptionError: The optimizer is not known.
    """

    dtype: torch.dtype
    optimizer: str

    def __post_init__(self) -> None:
        """Refuse an optimizer that is not known."""
        _known(self.optimizer)

    def held(self, weights: Iterable[Weight]) -> int:
        """Return the bytes that stay while micro-batches run."""
        return sum(map(self._held, weights))

    def step(self, weights: Iterable[Weight]) -> int:
        """Return what comes on top while the optimizer steps.

        No activations are held then: a stage needs the larger of the two.
        """
        return sum(map(self._step, weights))

    def _held(self, weight: Weight) -> int:
        if not weight.trainable:
            return weight.nbytes
        full = max(weight.itemsize, FULL_ITEMSIZE)
        master = full if weight.itemsize < full else 0
        accumulated = weight.itemsize if self.dtype in _ACCUMULATES else 0
        states = optimizer_states(self.optimizer) * full
        return weight.numel * (2 * weight.itemsize + master + accumulated + states)

    def _step(self, weight: Weight) -> int:
        if not weight.trainable:
            return 0
        full = max(weight.itemsize, FULL_ITEMSIZE)
        cast = full if weight.itemsize < full else 0
        return weight.numel * (cast + _SCRATCH[_known(self.optimizer)] * full)


def reserved_bytes(costed: CostedGraph, units: Units, blocks: Sequence[int]) -> int:
    """Return what backward holds for a moment wherever it runs.

    At least what a unit of a block holds: a block may be brought back by recomputation
    at the same time. The few units elsewhere that need more (a loss over a large
    vocabulary) say so themselves.

    Args:
        costed: The priced graph.
        units: Its units.
        blocks: Number of the block of each unit, -1 for none.
    """
    transient = [
        max(costed.costs[node].transient_bytes for node in nodes)
        for nodes in units.nodes
    ]
    inside = [size for size, block in zip(transient, blocks, strict=True) if block >= 0]
    most = sorted(transient, reverse=True)
    common = most[EXCEPTIONS] if len(most) > EXCEPTIONS else 0
    return max([common, *inside])


def _known(optimizer: str) -> str:
    name = optimizer.lower().replace("_", "-")
    if name not in OPTIMIZER_STATES:
        raise OptionError(
            f"optimizer {optimizer!r} is not known",
            hint=f"choose from {', '.join(OPTIMIZER_STATES)}",
        )
    return name
