"""Average and clip gradients of every kind, also those that DeepSpeed refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from partitioner.runtime.replicas import average

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

__all__ = ["AnyGradients", "clip", "total_norm"]

_LEAST_NORM = 1e-6
"""Added to the norm that is divided by, as ``clip_grads_with_norm_`` does."""


class AnyGradients(PipelineEngine):
    """An engine that averages gradients of any dtype over the replicas."""

    def _reduce_non_expert_gradients(
        self, grads: Sequence[Tensor], elements_per_buffer: int
    ) -> None:
        """Average, for DeepSpeed, which takes float32 and narrower dtypes alone."""
        dtypes = get_accelerator().supported_dtypes()
        theirs = [gradient for gradient in grads if gradient.dtype in dtypes]
        ours = [gradient for gradient in grads if gradient.dtype not in dtypes]
        super()._reduce_non_expert_gradients(theirs, elements_per_buffer)
        average(ours, self.mpu.get_data_parallel_group())


def clip(parameters: Sequence[nn.Parameter], *, limit: float, group: Any) -> Tensor:
    """Scale gradients so that their norm over all stages is at most ``limit``.

    DeepSpeed's own function refuses scalar parameters, drops the imaginary part of
    complex gradients, and does not say what the norm was.

    Args:
        parameters: This stage's, with gradients equal on all replicas; one that is
            marked as replicated is counted on another stage.
        limit: Largest norm.
        group: The ranks of one replica, one for each stage; all must call.

    Returns:
        The norm before, a scalar.
    """
    norm = total_norm(parameters, group)
    dense = [p for p in parameters if p.grad is not None and not p.grad.is_sparse]
    torch.nn.utils.clip_grads_with_norm_(dense, limit, norm)
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            share = (limit / (norm + _LEAST_NORM)).clamp(max=1.0)
            parameter.grad.mul_(share.to(parameter.grad))
    return norm


def total_norm(parameters: Sequence[nn.Parameter], group: Any) -> Tensor:
    """Return the 2-norm of the gradients over all stages, a tied one counted once.

    Args:
        parameters: As for :func:`clip`.
        group: As for :func:`clip`.
    """
    gradients = [
        _elements(parameter.grad)
        for parameter in parameters
        if parameter.grad is not None
        and not getattr(parameter, "ds_pipe_replicated", False)
    ]
    norm = torch.nn.utils.get_total_norm(gradients)
    squares = norm.to(get_accelerator().current_device_name()).float().square()
    comm.all_reduce(squares, group=group)
    return squares.sqrt()


def _elements(gradient: Tensor) -> Tensor:
    """Return all elements that are not zero by being left out."""
    found = gradient.detach()
    return found.coalesce().values() if found.is_sparse else found
