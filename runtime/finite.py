"""Find the first module whose numbers are not finite, on whatever stage it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.segment import SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.runtime.loss import LossHead

__all__ = ["watch"]


def watch(stage: nn.Module, head: LossHead, number: int) -> None:
    """Stop at the first infinite or undefined number of every forward in training.

    What a module returns is looked at if it depends on parameters: masks may hold
    infinities. Each look makes the host wait for the device.

    Args:
        stage: Holds the segments of this rank.
        head: The loss of the last stage.
        number: The stage's number, for messages.
    """
    segments = [each for each in stage.modules() if isinstance(each, SegmentProgram)]
    for segment in segments:
        for path, module in segment.named_modules():
            if module is not segment:
                module.register_forward_hook(
                    partial(_check_module, path, number), with_kwargs=True
                )
        segment.watched = partial(_check_segment, segment, number)
    head.watch = partial(_check_loss, number)


def _check_module(  # noqa: PLR0917 - torch calls it so
    path: str, stage: int, module: nn.Module, args: Any, kwargs: Any, result: Any
) -> None:
    found = _odd(result) if module.training else None
    if found is None:
        return
    where = f"{path!r} ({type(module).__name__})"
    if _odd((args, kwargs)) is None:
        raise _error(f"{where} returned {found}", stage)
    raise _error(f"what was computed for {where} holds {found}", stage)


def _check_segment(segment: SegmentProgram, stage: int, values: Sequence[Any]) -> None:
    found = _odd(values) if segment.training else None
    if found is not None:
        raise _error(f"operations of segment {segment.name!r} returned {found}", stage)


def _check_loss(stage: int, loss: Tensor) -> None:
    if not bool(torch.isfinite(loss).all()):
        raise _error(f"the loss is {loss.item()}", stage)


def _error(what: str, stage: int) -> RuntimeGuardError:
    return RuntimeGuardError(
        f"on stage {stage}, {what}; everything that ran before it was finite",
        hint="look at the learning rate, the loss scale and the batch",
    )


def _odd(values: Any) -> str | None:
    """Return which odd numbers a value holds that depends on parameters."""
    for leaf in pytree.tree_leaves(values):
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        if torch.is_grad_enabled() and not leaf.requires_grad:
            continue
        if not bool(torch.isfinite(leaf).all()):
            return "nan" if bool(torch.isnan(leaf).any()) else "infinite numbers"
    return None
