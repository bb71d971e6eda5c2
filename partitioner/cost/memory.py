"""Bytes that a stage holds for its parameters, in training and in the optimizer's step.

Per element of a trainable parameter under DeepSpeed 0.19, R replicas, n states of the
optimizer (see ``OPTIMIZER_STATES``):

====  ========  ======  ========  ===========  ======  ======  ===================
ZeRO  type      weight  gradient  in backward  master  states  in a step, Adam
====  ========  ======  ========  ===========  ======  ======  ===================
0     float32   4       4         –            –       4n      4
0     bfloat16  2       2         (2)          4/R     4n/R    8/R
0     float16   2       2         –            4       4n      8
1     float32   4       4         –            4/R     4n/R    4/R or 8/R - 4
1     bfloat16  2       2         –            4/R     4n/R    2/R or 8/R - 2
1     float16   2       2         –            4/R     4n/R    2/R or 8/R - 2
====  ========  ======  ========  ===========  ======  ======  ===================

Where these are (``deepspeed/runtime``):

- Without ZeRO: float32 torch's own optimizer; float16
  ``fp16/unfused_optimizer.py: FP16_UnfusedOptimizer`` (``fp32_groups``); bfloat16
  ``bf16_optimizer.py: BF16_Optimizer._setup_for_real_optimizer``, which shares master
  copies and states among the replicas even then (``fp32_groups_flat_partition``), and
  adds gradients up in ``fp32_groups_gradients_flat``, in the type in which gradients
  accumulate: the parameters' unless configured. Those of one micro-batch come during
  its backward and are let go at its end (``runtime.gradient_sums``).
- With ZeRO 1: ``zero/stage_1_and_2.py: DeepSpeedZeroOptimizer``, whatever the type
  (``single_partition_of_fp32_groups``, which float32 has twice then). Gradients stay
  whole until they are reduced, into a buffer of this rank's share
  (``grads_in_partition``); the step has that share alone, cast to float32.
- With the optimizer offloaded: weights and gradients alone; one buffer of the size of
  the largest parameter (``temp_grad_buffer_for_gpu_offload``).

In a step torch's ``foreach`` Adam takes the square root of all second moments at once
(4 bytes of 8; the other 4 are the gradient in float32), and in plain float32 the
engine copies gradients to reduce them. On an H200 the allocator held 16.1 bytes per
bfloat16 parameter between steps of AdamW, and 12.1 per float32 parameter (its gradient
is freed then). A frozen parameter or a buffer is its weight alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import torch

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partitioner.cost.weights import Weight

__all__ = [
    "OPTIMIZER_STATES",
    "REDUCE_BUCKET",
    "Engine",
    "HeldBytes",
    "optimizer_states",
]

OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd-momentum": 1, "sgd": 0}
"""Tensors of a parameter's size that each optimizer keeps."""

FULL_ITEMSIZE = 4
"""Bytes of a float32 element: the type in which optimizers compute."""

REDUCE_BUCKET = 2**24
"""Elements of the bucket in which ZeRO reduces gradients (DeepSpeed's default is 5e8:
1 GB in bfloat16): 32 MiB and more, where links reach their full rate."""

_SCRATCH = {"adam": 1, "adamw": 1, "sgd-momentum": 0, "sgd": 0}
"""Tensors of a parameter's size that each optimizer allocates in its step."""


def optimizer_states(optimizer: str) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps.

    Raises:
        OptionError: The optimizer is not known.
    """
    return OPTIMIZER_STATES[_known(optimizer)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What an engine holds for parameters and buffers all the time, by kind."""

    weight_bytes: int = 0
    """Parameters and buffers, in the type of the engine."""
    gradient_bytes: int = 0
    """Gradients, added up over micro-batches."""
    master_bytes: int = 0
    """Copies of the parameters in float32."""
    optimizer_bytes: int = 0
    """States of the optimizer."""

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(asdict(self).values())

    def __add__(self, other: HeldBytes) -> HeldBytes:
        """Return the sum by kind."""
        names = [field.name for field in fields(self)]
        return HeldBytes(**{n: getattr(self, n) + getattr(other, n) for n in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What DeepSpeed's engine holds for parameters and buffers on one rank.

    Args:
        dtype: The type it trains in.
        optimizer: Key of ``OPTIMIZER_STATES``.
        zero_stage: 0 or 1.
        replicas: Pipelines side by side, among which states may be shared.
        offload_optimizer: Master copies and states are in the host's memory.

    Raises:
        OptionError: The optimizer is not known.
    """

    dtype: torch.dtype
    optimizer: str
    zero_stage: int = 0
    replicas: int = 1
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        """Refuse an optimizer that is not known."""
        _known(self.optimizer)

    def held(self, weights: Iterable[Weight]) -> int:
        """Return the bytes that stay while micro-batches run."""
        return self.by_kind(weights).total

    def by_kind(self, weights: Iterable[Weight]) -> HeldBytes:
        """Return the bytes that stay while micro-batches run, by kind."""
        return sum(map(self._held, weights), HeldBytes())

    def step(self, weights: Iterable[Weight]) -> int:
        """Return what comes on top while gradients are reduced and the optimizer steps.

        No activations are held then: a stage needs the larger of the two. Below zero
        where gradients are gone by then.
        """
        return sum(map(self._step, weights))

    def passing(self, weights: Iterable[Weight]) -> int:
        """Return the gradients of a micro-batch that are not where they are summed."""
        if not self._bfloat16:
            return 0
        return sum(weight.nbytes for weight in weights if weight.trainable)

    def buffer_bytes(self, weights: Iterable[Weight]) -> int:
        """Return the buffers that ZeRO has on any rank.

        The bucket and a flat copy of what is reduced from it. With the optimizer
        offloaded also one gradient, the largest.

        Args:
            weights: All weights of the model.
        """
        if not self.zero_stage:
            return 0
        bucket = 2 * REDUCE_BUCKET * self.dtype.itemsize
        sizes = [weight.nbytes for weight in weights if weight.trainable]
        return bucket + (max(sizes, default=0) if self.offload_optimizer else 0)

    @property
    def _bfloat16(self) -> bool:
        """Whether the engine is the one that adds bfloat16 gradients up apart."""
        return self.dtype == torch.bfloat16 and not self.zero_stage

    def _share(self, nbytes: int) -> int:
        """Return a rank's part of what the engine shares among replicas."""
        shares = self.replicas if self.zero_stage or self._bfloat16 else 1
        return -(-nbytes // shares)

    def _held(self, weight: Weight) -> HeldBytes:
        if not weight.trainable:
            return HeldBytes(weight_bytes=weight.nbytes)
        full = weight.numel * max(weight.itemsize, FULL_ITEMSIZE)
        has_master = self.zero_stage or weight.nbytes < full
        states = optimizer_states(self.optimizer)
        here = not self.offload_optimizer
        return HeldBytes(
            weight_bytes=weight.nbytes,
            gradient_bytes=weight.nbytes,
            master_bytes=self._share(full) if has_master and here else 0,
            optimizer_bytes=states * self._share(full) * here,
        )

    def _step(self, weight: Weight) -> int:
        if not weight.trainable or self.offload_optimizer:
            return 0
        full = weight.numel * max(weight.itemsize, FULL_ITEMSIZE)
        scratch = _SCRATCH[_known(self.optimizer)] * self._share(full)
        if self.zero_stage:
            return self._zero_step(weight, self._share(full), scratch)
        if weight.nbytes < full:
            return self._share(full) + scratch
        return max(scratch, full)

    def _zero_step(self, weight: Weight, full: int, scratch: int) -> int:
        """Return the largest of: reducing, casting and stepping a rank's share.

        The last two come when all gradients but that share are gone.
        """
        share = self._share(weight.nbytes)
        casting = share + (share if share < full else 0) + full
        return max(share, max(casting, full + scratch) - weight.nbytes)


def _known(optimizer: str) -> str:
    name = optimizer.lower().replace("_", "-")
    if name not in OPTIMIZER_STATES:
        raise OptionError(
            f"optimizer {optimizer!r} is not known",
            hint=f"choose from {', '.join(OPTIMIZER_STATES)}",
        )
    return name
