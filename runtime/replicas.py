"""Let all ranks begin with, and keep, the same values where DeepSpeed does not care.

It broadcasts parameters over the replicas, but not all of them, and no buffers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from deepspeed import comm

from partitioner.runtime.agreement import gather
from partitioner.runtime.bits import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

__all__ = ["average", "replicate", "share_buffers"]


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


def share_buffers(buffers: Mapping[str, Tensor]) -> None:
    """Give a buffer that several ranks hold the values that the lowest of them has.

    Replicas hold the same buffers, and so do stages that read the same one (a table of
    positions). They are made alike by models that are built alike; a table or a vector
    that was drawn at random, after each rank was seeded by its number, is not.

    Args:
        buffers: This rank's, by original name; every rank must call.
    """
    told = gather({name: _digest(buffer) for name, buffer in buffers.items()})
    sources: dict[str, int] = {}
    differing: set[str] = set()
    for rank, digests in enumerate(told):
        for name, digest in digests.items():
            source = sources.setdefault(name, rank)
            if digest != told[source][name]:
                differing.add(name)
    for name in sorted(differing):
        mine = buffers.get(name)
        values = [None if mine is None else mine.detach().cpu()]
        dist.broadcast_object_list(values, src=sources[name])
        if mine is not None and values[0] is not None:
            mine.data.copy_(values[0])


def _digest(buffer: Tensor) -> str:
    values = bytes_of(buffer).cpu().numpy()
    kind = f"{buffer.dtype}, {tuple(buffer.shape)}"
    return f"{kind}: {hashlib.blake2b(values.data, digest_size=16).hexdigest()}"
