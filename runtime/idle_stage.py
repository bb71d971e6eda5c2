"""A gradient for what stands in for the parameters of a stage that trains nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["reach"]


class _Reach(torch.autograd.Function):
    """Hands a tensor on as it is; backward, a parameter gets a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, parameter: Tensor) -> Tensor:
        ctx.save_for_backward(parameter)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (parameter,) = ctx.saved_tensors
        return gradient, torch.zeros_like(parameter)


def reach(outputs: Any, parameter: nn.Parameter) -> Any:
    """Let backward reach a parameter through what a stage sends, or hands to the loss.

    DeepSpeed's bf16 optimizer takes the norm of the gradients that there are: without
    one it fails. The first tensor carries bits, so nothing is added to it.

    Args:
        outputs: A carrier, or a tuple that begins with one or with a token.
        parameter: One zero.
    """
    if isinstance(outputs, Tensor):
        return _Reach.apply(outputs, parameter)  # type: ignore[no-untyped-call]
    first, *others = outputs
    return (_Reach.apply(first, parameter), *others)  # type: ignore[no-untyped-call]
