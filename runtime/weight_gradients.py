"""Put the gradients of weights off, to when a stage would wait for another.

Backward has two halves: gradients of the inputs, for which the stage before waits, and
gradients of the weights, for which nobody does until the batch ends. Inside
:meth:`WeightGradients.put_off` the operations that have most of the second half are
replaced by ones whose backward leaves it to :meth:`PutOff.run`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partitioner.runtime.gradient_sums import GradientSums

__all__ = ["WEIGHT_AT", "PutOff", "WeightGradients"]

WEIGHT_AT = {
    F.linear: 1,
    F.conv1d: 1,
    F.conv2d: 1,
    F.conv3d: 1,
    F.conv_transpose1d: 1,
    F.conv_transpose2d: 1,
    F.conv_transpose3d: 1,
    torch.addmm: 2,
}
"""Functions of an input and a weight, and where among the arguments the weight is."""


class PutOff:
    """The gradients of weights that one micro-batch's backward has left."""

    def __init__(self) -> None:
        self._rest: list[Callable[[], None]] = []

    def add(self, rest: Callable[[], None]) -> None:
        """Keep what adds one weight's gradient to its ``.grad``."""
        self._rest.append(rest)

    def run(self) -> None:
        """Make these gradients, in the order of backward."""
        for index, rest in enumerate(self._rest):
            rest()
            self._rest[index] = _nothing  # and let go of what it held
        self._rest.clear()


class WeightGradients:
    """Where backward leaves the gradients of weights.

    Args:
        sums: Where they are added once they are made.
    """

    def __init__(self, sums: GradientSums) -> None:
        self.sums = sums
        self.into = PutOff()
        """What the next backward fills."""
        self._weight_class = type("Weight", (_Weight,), {"gradients": self})

    @contextmanager
    def put_off(self, weights: Iterable[nn.Parameter]) -> Iterator[None]:
        """Leave the gradients of weights for later, of what is computed inside.

        Inside, a weight is of a class that sees which functions it is given to. (A
        ``TorchFunctionMode`` would see every function, and the host would be too slow
        for a GPU.)

        Args:
            weights: Parameters; those of a class of their own are left alone.
        """
        found = [weight for weight in weights if _can_be_seen(weight)]
        try:
            for weight in found:
                weight.__class__ = self._weight_class
            yield
        finally:
            for weight in found:
                weight.__class__ = nn.Parameter


class _Weight(nn.Parameter):
    """A parameter while a forward runs."""

    gradients: WeightGradients

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        place = WEIGHT_AT.get(function)
        rest = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as nn.Parameter does
            if place is None or not _can_wait(args, place):
                return function(*args, **rest)
            if function is F.linear:
                bias = args[2] if len(args) > 2 else rest.get("bias")  # noqa: PLR2004
                return _Linear.apply(cls.gradients, *args[:2], bias)  # type: ignore[no-untyped-call]
            return _Split.apply(cls.gradients, function, place, rest, *args)  # type: ignore[no-untyped-call]


def _can_be_seen(weight: nn.Parameter) -> bool:
    """Whether it may be a weight whose gradient nobody watches being made."""
    return (
        type(weight) is nn.Parameter
        and weight.ndim > 1
        and weight.requires_grad
        and not weight._backward_hooks  # noqa: SLF001 - torch has no public name
        and not weight._post_accumulate_grad_hooks  # noqa: SLF001
    )


def _can_wait(args: Any, place: int) -> bool:
    """Whether what backward needs of a call is known here, and all that it needs."""
    if len(args) <= place or not torch.is_grad_enabled():
        return False
    source = args[place - 1]
    return (
        isinstance(args[place], _Weight)
        and isinstance(source, Tensor)
        and source.requires_grad
        and not torch.is_autocast_enabled(source.device.type)
        # A checkpoint's second run must save what its first run saved.
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # noqa: SLF001
    )


class _Linear(torch.autograd.Function):
    """``F.linear``; its weight's gradient is added in one matrix product."""

    @staticmethod
    def forward(
        ctx: Any,
        gradients: WeightGradients,
        source: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        ctx.gradients = gradients
        ctx.save_for_backward(source, weight)
        return F.linear(source, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        source, weight = ctx.saved_tensors
        needs_source, _, needs_bias = ctx.needs_input_grad[1:]
        sums = ctx.gradients.sums
        ctx.gradients.into.add(lambda: _add_product(sums, weight, gradient, source))
        return (
            None,
            gradient.matmul(weight) if needs_source else None,
            None,
            gradient.flatten(0, -2).sum(0) if needs_bias else None,
        )


def _add_product(
    sums: GradientSums, weight: nn.Parameter, gradient: Tensor, source: Tensor
) -> None:
    left = gradient.reshape(-1, gradient.shape[-1]).t()
    sums.add_product(weight, left, source.reshape(-1, source.shape[-1]))


class _Split(torch.autograd.Function):
    """Any function of a weight, whose backward runs in two halves."""

    @staticmethod
    def forward(
        ctx: Any,
        gradients: WeightGradients,
        function: Any,
        place: int,
        kwargs: dict[str, Any],
        *args: Any,
    ) -> Tensor:
        ctx.gradients, ctx.place, ctx.weight = gradients, place, args[place]
        with torch.enable_grad():
            ctx.inside = [_leaf(each) for each in args]
            ctx.result = function(*ctx.inside, **kwargs)
        found: Tensor = ctx.result.detach()
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        inside, result, weight = ctx.inside, ctx.result, ctx.weight
        mine = inside[ctx.place]
        now = [
            index
            for index, needed in enumerate(ctx.needs_input_grad[4:])
            if needed and index != ctx.place
        ]
        made = torch.autograd.grad(
            result, [inside[index] for index in now], gradient, retain_graph=True
        )
        sums = ctx.gradients.sums
        halves = mine, result, gradient
        ctx.gradients.into.add(lambda: _add_rest(sums, weight, halves))
        returned: list[Any] = [None] * (4 + len(inside))
        for index, each in zip(now, made, strict=True):
            returned[4 + index] = each
        return tuple(returned)


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _add_rest(
    sums: GradientSums, weight: nn.Parameter, backward: tuple[Tensor, Tensor, Tensor]
) -> None:
    mine, result, gradient = backward
    (found,) = torch.autograd.grad(result, mine, gradient)
    sums.add(weight, found)


def _nothing() -> None:
    pass
