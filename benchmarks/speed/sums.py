"""Where the gradients of a stage's micro-batches are added up, as the engines do it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Protocol

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.precision_config import DeepSpeedBF16Config

from partitioner.runtime.gradient_sums import gradient_sums
from partitioner.runtime.parameter_order import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

__all__ = ["Sums", "sums_of"]


class Sums(Protocol):
    """What an engine calls around a backward: DeepSpeed's optimizers have both."""

    def backward_prologue(self) -> None:
        """Be ready for gradients."""

    def backward_epilogue(self) -> None:
        """Add up the gradients that are there."""


class _InPlace:
    """Sums in ``.grad``, where autograd adds."""

    def backward_prologue(self) -> None:
        """Leave what is there."""

    def backward_epilogue(self) -> None:
        """Autograd has added."""


def sums_of(
    parameters: Mapping[str, nn.Parameter], dtype: torch.dtype, *, plans: bool
) -> Sums:
    """Return the sums that an engine has of a stage's parameters.

    In bfloat16 they are those of DeepSpeed's own optimizer for pipelines: sums of the
    parameters' dtype, which is its default, next to float32 copies of the parameters;
    AdamW's own states are made in a first step, which is never taken here.

    Args:
        parameters: The stage's, by name; they move into one tensor, as in training.
        dtype: Of the model.
        plans: As the engine of a plan adds, else as DeepSpeed's.
    """
    if dtype != torch.bfloat16:
        return _InPlace()
    names = {value: name for name, value in parameters.items() if value.requires_grad}
    if plans:
        names = {value: names[value] for value in aligned(names)}
    with redirect_stdout(io.StringIO()):  # it prints how much memory there is
        found: Any = BF16_Optimizer(
            torch.optim.AdamW(list(names)),
            names,
            bfloat16_config=DeepSpeedBF16Config(enabled=True),
            grad_acc_dtype=dtype,
        )
    if plans:
        gradient_sums(found)
    sums: Sums = found
    return sums
