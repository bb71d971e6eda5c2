"""Parameters that live on several stages, and the sum of their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm
from torch import Tensor, nn

from partitioner.errors import EmitError, RuntimeGuardError
from partitioner.runtime.agreement import gather

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ParameterTie",
    "check_ties",
    "forget_gradients",
    "is_counted",
    "sum_tied_gradient",
]

# Where DeepSpeed's optimizers accumulate a parameter's gradient, and the one that
# counts if several are there: the bf16 optimizer's high-precision gradient, ZeRO-1's
# accumulator in another dtype, autograd's own.
_SLOTS = ("grad", "grad_accum", "_hp_grad")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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


def check_ties(parameters: Mapping[str, nn.Parameter]) -> None:
    """Compare the copies of each tied parameter before anything is sent.

    Args:
        parameters: This stage's copies by the tie's name; every rank must call.

    Raises:
        EmitError: Two stages hold different kinds of tensor; on all ranks.
    """
    mine = {
        name: f"{tuple(each.shape)}, {each.dtype}, requires_grad={each.requires_grad}"
        for name, each in parameters.items()
    }
    found: dict[str, set[str]] = {}
    for kinds in gather(mine):
        for name, kind in kinds.items():
            found.setdefault(name, set()).add(kind)
    for name, different in sorted(found.items()):
        if len(different) > 1:
            raise EmitError(
                f"the copies of the tied parameter {name!r} differ between stages: "
                f"{'; '.join(sorted(different))}",
                hint="a tie holds one parameter; all its names must mean that one",
            )


def is_counted(parameter: nn.Parameter) -> bool:
    """Whether a parameter is trained, and its gradient counted in the norm, here.

    A stage needs one: DeepSpeed builds no optimizer for nothing, and its bf16 optimizer
    takes no norm where every parameter is counted on another stage.
    """
    return parameter.requires_grad and not getattr(
        parameter, "ds_pipe_replicated", False
    )


def forget_gradients(parameter: nn.Parameter) -> None:
    """Drop what another engine, in this process before, has accumulated.

    Its optimizer leaves its slots on the parameter, and a tie's gradient would be
    summed there.

    Args:
        parameter: One that a new engine is going to train.
    """
    for slot in _SLOTS:
        if slot in vars(parameter):
            delattr(parameter, slot)
    parameter.grad = None


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
    slot = max(filled, default=-1)
    gradient = _in(parameter, _SLOTS[slot]) if filled else None
    if gradient is not None and gradient.is_sparse:
        # Only an embedding's own: where it is tied, others make a dense one.
        gradient = gradient.to_dense()
        setattr(parameter, _SLOTS[slot], gradient)
    kind = -1 if gradient is None else _DTYPES.index(gradient.dtype)
    # A stage without a gradient learns from the others what kind it lacks.
    agreed = torch.tensor([slot, kind], device=parameter.device)
    comm.all_reduce(agreed, op=comm.ReduceOp.MAX, group=group)
    slot, kind = agreed.tolist()
    if slot < 0:
        return
    if gradient is None:
        gradient = _zero_gradient(parameter, _SLOTS[slot], _DTYPES[kind])
    comm.all_reduce(gradient, group=group)


def _in(parameter: nn.Parameter, slot: str) -> Tensor | None:
    gradient: Tensor | None = getattr(parameter, slot, None)
    return gradient


def _zero_gradient(parameter: nn.Parameter, slot: str, dtype: torch.dtype) -> Tensor:
    if slot == "_hp_grad":  # it is a slice of the optimizer's own memory
        raise RuntimeGuardError(
            "a tied parameter got no gradient on one of its stages in the first batch, "
            "which DeepSpeed's bf16 optimizer cannot handle",
            hint="use ZeRO stage 1",
        )
    gradient = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    setattr(parameter, slot, gradient)
    return gradient
