"""Why a segment is not replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.runtime.python_state import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["NotReplayedError", "RecordingError", "hindrance", "hindrance_now"]

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class NotReplayedError(Exception):
    """A segment runs as it is, launch by launch; the message says why."""


class RecordingError(Exception):
    """The device refused to record, and cannot go on; the message says why."""


def hindrance(module: nn.Module, device_type: str) -> str:
    """Return what about a module a replay would do wrong; empty: nothing.

    Args:
        module: Looked at with its submodules.
        device_type: Where everything must be.
    """
    if torch.nn.modules.module._has_any_global_hook():  # noqa: SLF001 - torch has no public name
        return "there are hooks for all modules, which a replay would skip"
    for path, part in module.named_modules():
        for name in _HOOKS:
            if getattr(part, name):
                return f"{path or 'the segment'} has hooks, which a replay would skip"
        for kind, tensor in _tensors(part):
            if tensor.device.type != device_type:
                return f"a {kind} of {path or 'the segment'} is on {tensor.device}"
            if kind == "parameter" and _is_unusual(tensor):
                return f"a parameter of {path or 'the segment'} has hooks or a class"
    return ""


def hindrance_now(values: Sequence[Any], device_type: str) -> str:
    """Return what about a call a replay would do wrong; empty: nothing.

    Args:
        values: The incoming values.
        device_type: Where all tensors must be.
    """
    for value in values:
        if not isinstance(value, Tensor):
            if not isinstance(value, PLAIN):
                return f"it is given a {type(value).__name__}"
        elif value.device.type != device_type:
            return f"it is given a tensor on {value.device}"
        elif value.layout != torch.strided:
            return "it is given a sparse tensor"
    if torch.is_autocast_enabled(device_type):
        return "it is called with autocast"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:  # noqa: SLF001 - torch has no public name
        return "it is called with hooks for saved tensors"
    return ""


def _tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for kind, table in (("parameter", part._parameters), ("buffer", part._buffers)):  # noqa: SLF001 - where torch looks
        for tensor in table.values():
            if tensor is not None:
                yield kind, tensor


def _is_unusual(weight: Tensor) -> bool:
    """Whether something watches a weight's gradient, or its use."""
    return bool(
        type(weight) is not nn.Parameter
        or weight._backward_hooks  # noqa: SLF001 - torch has no public name
        or weight._post_accumulate_grad_hooks  # noqa: SLF001
    )
