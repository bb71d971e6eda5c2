"""What hand-written stages hand to each other: one tensor, whatever the layers make."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.speed.setting import Setting

__all__ = ["as_pair", "from_wire", "to_wire", "wire"]


@cache
def wire(setting: Setting) -> list[list[torch.Size]]:
    """Return the shapes of what every layer receives."""
    found = []
    inputs = {name: value.to("meta") for name, value in setting.data[0][0].items()}
    value, _ = as_pair(inputs, None)
    with torch.device("meta"):
        for spec in setting.workload.layers():
            tensors = value if isinstance(value, tuple) else (value,)
            found.append([tensor.shape for tensor in tensors])
            value = spec.build().to(setting.dtype)(value)
    return found


def from_wire(received: Any, shapes: Sequence[torch.Size] | None) -> Any:
    """Return what a stage's first layer takes, images in channels-last order.

    Args:
        received: What :func:`to_wire` made, or the inputs of the model.
        shapes: Of what the layer takes; None: the model's inputs, as they are.
    """
    if shapes is not None and len(shapes) > 1:
        sizes = [shape.numel() for shape in shapes]
        pieces = zip(received.split(sizes), shapes, strict=True)
        received = tuple(piece.view(shape) for piece, shape in pieces)
    return _as_images(received, torch.channels_last)


def to_wire(made: Any) -> Any:
    """Return what a stage sends of what its last layer made.

    DeepSpeed sends contiguous tensors alone, and runs backward once for each tensor
    that it sends: several are joined.
    """
    if isinstance(made, tuple):
        return torch.cat([each.reshape(-1) for each in made])
    return _as_images(made, torch.contiguous_format)


def as_pair(inputs: dict[str, Any], labels: Any) -> tuple[Any, Any]:
    """Return DeepSpeed's form of a micro-batch: a tensor, or a tuple of several."""
    tensors = tuple(inputs.values())
    return (tensors[0] if len(tensors) == 1 else tensors), labels


def _as_images(value: Any, memory_format: torch.memory_format) -> Any:
    """Return a batch of images in another order in memory; all else as it is."""
    if isinstance(value, tuple):
        return tuple(_as_images(each, memory_format) for each in value)
    if isinstance(value, Tensor) and value.dim() == 4:  # noqa: PLR2004 - NCHW
        return value.contiguous(memory_format=memory_format)
    return value
