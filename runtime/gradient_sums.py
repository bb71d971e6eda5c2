"""Where an optimizer sums the gradients of micro-batches, and how they get there.

DeepSpeed's optimizer for bfloat16 pipelines keeps each parameter's gradient beside its
sum: before a backward it writes zeros to it, backward adds to the zeros, and what came
of that is added to the sum, parameter by parameter: seven times a parameter's size
moved. Here a gradient is added once (three times its size), all in one launch, and let
go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

__all__ = ["BF16Sums", "GradientSums", "gradient_sums"]


def gradient_sums(optimizer: Any) -> GradientSums | None:
    """Return where an optimizer that DeepSpeed has built sums; None: it is not known.

    Makes DeepSpeed's optimizer for bfloat16 sum as described above.
    """
    if type(optimizer) is BF16_Optimizer:
        plain = not optimizer.immediate_grad_update
        return BF16Sums(optimizer) if plain else None
    return None if isinstance(optimizer, ZeROOptimizer) else GradientSums()


class GradientSums:
    """Sums in ``.grad``, as autograd does."""

    def __init__(self) -> None:
        self._kept: dict[nn.Parameter, Tensor] = {}

    def memory(self, weights: Iterable[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Return where the sums of weights are, in this step and in all others.

        Args:
            weights: Before something is added there, :meth:`begin` must be called.
        """
        found: dict[nn.Parameter, Tensor] = {}
        for weight in weights:
            if weight not in self._kept:
                self._kept[weight] = torch.zeros_like(weight, requires_grad=False)
            found[weight] = self._kept[weight]
        return found

    @torch.no_grad()
    def begin(self, weights: Iterable[nn.Parameter]) -> None:
        """Make the sums of weights ready for something to be added in their memory."""
        fresh: list[Tensor] = []
        for weight, kept in self.memory(weights).items():
            if weight.grad is None:
                fresh.append(kept)
            elif weight.grad is not kept:
                kept.copy_(weight.grad)
            weight.grad = kept
        if fresh:
            torch._foreach_zero_(fresh)

    @torch.no_grad()
    def add(self, weight: nn.Parameter, gradient: Tensor) -> None:
        """Add a gradient to a weight's sum."""
        into = self._into(weight)
        if into is None:
            weight.grad = gradient
        else:
            into.add_(gradient)

    @torch.no_grad()
    def add_product(self, weight: nn.Parameter, left: Tensor, right: Tensor) -> None:
        """Add a matrix product, in one operation where the dtypes are equal."""
        into = self._into(weight)
        if into is not None and into.dtype == left.dtype == right.dtype:
            into.addmm_(left, right)
        else:
            self.add(weight, left.mm(right))

    def _into(self, weight: nn.Parameter) -> Tensor | None:
        return weight.grad


class BF16Sums(GradientSums):
    """Sums in the memory of DeepSpeed's optimizer for bfloat16.

    Args:
        optimizer: From now on it sums so.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._places = {
            parameter: (index, place)
            for index, group in enumerate(optimizer.bf16_groups)
            for place, parameter in enumerate(group)
        }
        optimizer.clear_lp_grads = self._let_go
        optimizer.update_hp_grads = self._update

    def memory(self, weights: Iterable[nn.Parameter]) -> dict[nn.Parameter, Tensor]:
        """Return where the sums of weights are, in this step and in all others."""
        known, others = self._split(weights)
        found = {weight: self._place(weight).view(weight.shape) for weight in known}
        return found | super().memory(others)

    def begin(self, weights: Iterable[nn.Parameter]) -> None:
        """Say that something will be added to the sums of weights."""
        known, others = self._split(weights)
        for weight in known:
            self._sum(weight)
        super().begin(others)

    def _split(
        self, weights: Iterable[nn.Parameter]
    ) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Tell the optimizer's weights from those that it was not given."""
        known: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for weight in weights:
            (known if weight in self._places else others).append(weight)
        return known, others

    def _let_go(self, set_to_none: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - DeepSpeed's signature
        """Let go of all gradients that are not sums, in place of writing zeros."""
        for parameter in self._places:
            parameter.grad = None

    @torch.no_grad()
    def _update(self, clear_lp_grads: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - DeepSpeed's signature
        """Add the gradients that backward has made to their sums."""
        optimizer = self._optimizer
        sums: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter, (index, place) in self._places.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if optimizer.autoep_folding_tp_group is not None or gradient.is_sparse:
                optimizer._update_hp_grad(parameter, index, place, clear_lp_grads=False)  # noqa: SLF001 - no public name
            else:
                sums.append(self._sum(parameter))
                gradients.append(gradient.reshape(-1).to(sums[-1].dtype))
            parameter.grad = None
        if sums:
            torch._foreach_add_(sums, gradients)

    def _into(self, weight: nn.Parameter) -> Tensor | None:
        if weight not in self._places:
            return super()._into(weight)
        return self._sum(weight).view(weight.shape)

    def _sum(self, parameter: nn.Parameter) -> Tensor:
        """Return the sum of a parameter's gradients, which something is added to."""
        index, place = self._places[parameter]
        found = self._place(parameter)
        parameter._hp_grad = found  # type: ignore[attr-defined]  # noqa: SLF001 - where DeepSpeed looks
        self._optimizer.fp32_groups_has_gradients[index][place] = True
        return found

    def _place(self, parameter: nn.Parameter) -> Tensor:
        index, place = self._places[parameter]
        found: Tensor = self._optimizer.fp32_groups_gradients[index][place]
        return found
