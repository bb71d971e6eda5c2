"""Parameters that live on several stages, and the sum of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from deepspeed import comm
from torch import Tensor, nn

from partitioner.errors import RuntimeGuardError

__all__ = ["ParameterTie", "sum_tied_gradient"]

# Where DeepSpeed's optimizers accumulate a parameter's gradient, and the one that
# counts if several are there: the bf16 optimizer's high-precision gradient, ZeRO-1's
# accumulator in another dtype, autograd's own.
_SLOTS = ("grad", "grad_accum", "_hp_grad")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTie:
    """A parameter that lives on several stages.

    Args:
        name: Its original name.
        stages: The stages that use it, in ascending order.
        aliases: Other original names of the same parameter.
    """

    name: str
    stages: tuple[int, ...]
    aliases: tuple[str, ...] = ()


def sum_tied_gradient(parameter: nn.Parameter, group: Any) -> None:
    """Replace each stage's gradient of a tied parameter by the sum over its stages.

    A stage that made no gradient in this batch takes part with zeros; where no
    stage made one there is nothing to sum.

    Args:
        parameter: This stage's copy.
        group: The ranks that hold a copy, one for each stage.

    Raises:
        RuntimeGuardError: This stage has no gradient where its optimizer must.
    """
    filled = [i for i, slot in enumerate(_SLOTS) if _in(parameter, slot) is not None]
    mine = max(filled, default=-1)
    highest = torch.tensor([mine], device=parameter.device)
    comm.all_reduce(highest, op=comm.ReduceOp.MAX, group=group)
    if highest.item() < 0:
        return
    slot = _SLOTS[int(highest.item())]
    gradient = _in(parameter, slot)
    if gradient is None:
        gradient = _zero_gradient(parameter, slot)
    comm.all_reduce(gradient, group=group)


def _in(parameter: nn.Parameter, slot: str) -> Tensor | None:
    gradient: Tensor | None = getattr(parameter, slot, None)
    return gradient


def _zero_gradient(parameter: nn.Parameter, slot: str) -> Tensor:
    if slot == "_hp_grad":  # it is a slice of the optimizer's own memory
        raise RuntimeGuardError(
            "a tied parameter got no gradient on one of its stages in the first batch, "
            "which DeepSpeed's bf16 optimizer cannot handle",
            hint="use ZeRO stage 1",
        )
    dtype = torch.float32 if slot == "grad_accum" else parameter.dtype
    gradient = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    setattr(parameter, slot, gradient)
    return gradient
