"""Keep data-parallel replicas equal, also where DeepSpeed cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

__all__ = ["average", "replicate"]


def replicate(parameters: Iterable[nn.Parameter], *, group: Any, source: int) -> None:
    """Give the parameters that DeepSpeed cannot broadcast the first replica's values.

    Its engine sends a parameter as ``p.data.view(torch.uint8)``, which torch refuses
    for a scalar (a learned temperature) and where the last dimension is not the
    innermost in memory (channels-last convolutions, a transposed weight). These are
    sent here, and marked as what the engine leaves alone.

    Args:
        parameters: A stage's parameters, on their device; every replica's in one order.
        group: The ranks that hold the same stage.
        source: The global rank whose values count.
    """
    for parameter in parameters:
        if parameter.dim() and parameter.stride(-1) == 1:
            continue
        values = parameter.data.contiguous()
        comm.broadcast(values, src=source, group=group)
        parameter.data.copy_(values)
        # DeepSpeed's mark of weights that are no replicas (its OptimizedLinear).
        parameter.ds_optim_param = None  # type: ignore[attr-defined]


def average(gradients: Iterable[Tensor], group: Any) -> None:
    """Average gradients over the replicas, in whatever dtype they are.

    DeepSpeed reduces those of float32 and narrower alone: not the gradients of double
    and complex parameters.

    Args:
        gradients: Written in place; every replica's in one order.
        group: The ranks that hold the same stage.
    """
    replicas = comm.get_world_size(group)
    for gradient in gradients if replicas > 1 else ():
        real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        values = real.contiguous()
        comm.all_reduce(values, group=group)
        real.copy_(values.div_(replicas))
