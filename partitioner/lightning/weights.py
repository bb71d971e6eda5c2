"""Weights between the stages of a pipeline and the whole ``LightningModule``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from partitioner.errors import CheckpointError
from partitioner.runtime.agreement import gather
from partitioner.runtime.checkpoint.export import find_checkpoint, read_weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor, nn

__all__ = ["follow_buffers", "held_tensors", "kept_marks", "spread", "weights_in"]


def held_tensors(pipeline: Any) -> dict[str, Tensor]:
    """Return the parameters and buffers of a rank's stages, by original name.

    Args:
        pipeline: The pipeline module.
    """
    found: dict[str, Tensor] = {}
    for layer in pipeline.local_layers():
        found |= dict(layer.named_parameters(remove_duplicate=False))
        found |= dict(layer.named_buffers(remove_duplicate=False))
    return found


def follow_buffers(pipeline: Any, module: nn.Module) -> None:
    """Let the module's buffers be those of a rank's stages.

    A parameter that is moved to a device stays the same object; a buffer does not, and
    a hook that sets it would set the one that was left behind.

    Args:
        pipeline: The pipeline module.
        module: The whole model.
    """
    buffers = dict(pipeline.loss_fn.state_dict())
    for layer in pipeline.local_layers():
        buffers |= dict(layer.named_buffers(remove_duplicate=False))
    for name, buffer in buffers.items():
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        if owner._buffers.get(last) is not None:  # noqa: SLF001 - setattr would ask what it is
            owner._buffers[last] = buffer  # noqa: SLF001


@torch.no_grad()
def spread(engine: Any, module: nn.Module) -> None:
    """Give every rank's module the values that the stages hold; every rank must call.

    Args:
        engine: The engine of the stages.
        module: The whole model, of which only this rank's stage is up to date.
    """
    mine = held_tensors(engine.module)
    kinds = {name: (tuple(t.shape), t.dtype) for name, t in mine.items()}
    owners: dict[str, tuple[int, Any]] = {}
    for rank, told in enumerate(gather(kinds)):
        for name, kind in told.items():
            owners.setdefault(name, (rank, kind))
    whole = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    for name in sorted(owners):
        source, (shape, dtype) = owners[name]
        value = (
            mine[name].detach().contiguous()
            if dist.get_rank() == source
            else torch.empty(shape, dtype=dtype, device=engine.device)
        )
        dist.broadcast(value, src=source)
        if name not in mine and name in whole:
            whole[name].data = value.to(whole[name].device)


@contextmanager
def kept_marks(module: nn.Module) -> Iterator[None]:
    """Keep what an engine has noted on the parameters while another is built of them.

    Args:
        module: Whose parameters they are.
    """
    before = [(p, dict(vars(p)), p.grad) for p in module.parameters()]
    try:
        yield
    finally:
        for parameter, marks, gradient in before:
            vars(parameter).clear()
            vars(parameter).update(marks)
            parameter.grad = gradient


def weights_in(path: Path) -> dict[str, Tensor]:
    """Return the model's ``state_dict`` from a checkpoint of a pipeline.

    Args:
        path: Its folder.

    Raises:
        CheckpointError: There is none, or a file is damaged.
    """
    try:
        return read_weights(find_checkpoint(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
