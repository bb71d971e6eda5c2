"""Bytes that a stage holds for its parameters for the whole run.

Per trainable parameter in DeepSpeed 0.19 (ZeRO off), by element:

================  ==========  ==========  ===========  ============  ======
parameters' type  weight      gradient    fp32 master  fp32 gradient states
================  ==========  ==========  ===========  ============  ======
float32           4           4           –            –             4 each
bfloat16          2           2           4            4             4 each
float16           2           2           4            4             4 each
================  ==========  ==========  ===========  ============  ======

bfloat16: ``runtime/bf16_optimizer.py: BF16_Optimizer._setup_for_real_optimizer``
(``fp32_groups_flat_partition``, ``fp32_groups_gradients_flat`` in the accumulation
type, cast to float32 in ``step`` if that type is narrower). float16:
``runtime/fp16/fused_optimizer.py: FP16_Optimizer`` (``fp32_groups_flat``; ``step``
casts all gradients to float32). A frozen parameter or a buffer is its weight alone.
"""

from __future__ import annotations

from partitioner.errors import OptionError

__all__ = ["OPTIMIZER_STATES", "optimizer_states", "static_bytes"]

OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd-momentum": 1, "sgd": 0}
"""Tensors of a parameter's size that each optimizer keeps."""

_FULL_ITEMSIZE = 4
"""Bytes of a float32 element: the type in which optimizers compute."""


def optimizer_states(optimizer: str) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps.

    Raises:
        OptionError: The optimizer is not known.
    """
    name = optimizer.lower().replace("_", "-")
    if name not in OPTIMIZER_STATES:
        raise OptionError(
            f"optimizer {optimizer!r} is not known",
            hint=f"choose from {', '.join(OPTIMIZER_STATES)}",
        )
    return OPTIMIZER_STATES[name]


def static_bytes(numel: int, itemsize: int, *, trainable: bool, optimizer: str) -> int:
    """Return the bytes one parameter or buffer costs for the whole run.

    Args:
        numel: Elements.
        itemsize: Bytes of one element in the engine's type.
        trainable: Whether it gets a gradient and optimizer states.
        optimizer: Key of ``OPTIMIZER_STATES``.

    Returns:
        Weight, and if trainable: gradient, float32 master copy and float32 gradient
        (types narrower than float32), optimizer states.

    Raises:
        OptionError: The optimizer is not known.
    """
    states = optimizer_states(optimizer)
    if not trainable:
        return numel * itemsize
    full = max(itemsize, _FULL_ITEMSIZE)
    master_and_gradient = 2 * full if itemsize < full else 0
    return numel * (2 * itemsize + master_and_gradient + states * full)
