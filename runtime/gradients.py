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
"""As in ``torch.nn.utils.clip_grad_norm_``: added to the norm that is divided by."""


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


def clip(parameters: Sequence[nn.Parameter], *, limit: float, group: Any) -> float:
    """Scale gradients so that their norm over all stages is at most ``limit``.

    DeepSpeed's own function refuses scalar parameters, drops the imaginary part of
    complex gradients, and does not say what the norm was.

    Args:
        parameters: This stage's, with gradients equal on all replicas; one that is
            marked as replicated is counted on another stage.
        limit: Largest norm.
        group: The ranks of one replica, one for each stage; all must call.

    Returns:
        The norm before.
    """
    norm = total_norm(parameters, group)
    share = limit / (norm + _LEAST_NORM)
    for parameter in parameters if share < 1 else ():
        if parameter.grad is not None:
            parameter.grad.mul_(share)
    return norm


def total_norm(parameters: Sequence[nn.Parameter], group: Any) -> float:
    """Return the 2-norm of the gradients over all stages, a tied one counted once.

    Args:
        parameters: As for :func:`clip`.
        group: As for :func:`clip`.
    """
    squares = [
        torch.linalg.vector_norm(_elements(parameter.grad)).double().square()
        for parameter in parameters
        if parameter.grad is not None
        and not getattr(parameter, "ds_pipe_replicated", False)
    ]
    device = get_accelerator().current_device_name()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for square in squares:
        total += square.to(device)
    comm.all_reduce(total, group=group)
    return total.sqrt().item()


def _elements(gradient: Tensor) -> Tensor:
    """Return all elements that are not zero by being left out."""
    found = gradient.detach()
    return found.coalesce().values() if found.is_sparse else found
