"""Operators below autograd: run on fakes at once, and looked at on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.capture.frames import user_source
from partitioner.errors import DataDependentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FakeDispatch", "OperatorWatch"]


class FakeDispatch(TorchDispatchMode):
    """Hands each operator on fakes to their mode, which is not on.

    It is not on, so that operators without fakes compute real constants. Without this
    class, each fake would find its mode, switch it on and start anew: a fifth of the
    time of a recording.

    Args:
        fakes: The mode of the fakes.
    """

    supports_higher_order_operators = True

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fakes = fakes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator."""
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            source = user_source()
            message = f"torch.{func.__name__} (an operator of functions) cannot be run"
            raise DataDependentError(
                f"{message} on fake tensors, at {source}",
                hint="use torch.where, or Python's own if in a submodule of its own",
                source=source,
            )
        if tuple(types) != (FakeTensor,):
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten._unsafe_view.default:  # noqa: SLF001 - an operator's name
            # Below autograd it is a view, which the cache of fakes knows.
            func = torch.ops.aten.view.default
        return self.fakes.__torch_dispatch__(func, types, args, kwargs or {})


class OperatorWatch(FakeDispatch):
    """Tells of each operator that takes random numbers or updates batch statistics.

    Fakes move no generator, so the operators' own tag is what tells; and batch norm's
    operators write their statistics without moving the tensors' version counters.

    Args:
        fakes: The mode of the fakes.
        on_draw: Called when an operator draws.
        on_write: Called with a tensor that is written.
        on_read: Called when an operator's result, or its shape, follows the numbers
            in its arguments.
    """

    def __init__(
        self,
        fakes: FakeTensorMode,
        *,
        on_draw: Callable[[], None],
        on_write: Callable[[torch.Tensor], None],
        on_read: Callable[[], None],
    ) -> None:
        super().__init__(fakes)
        self.on_draw, self.on_write, self.on_read = on_draw, on_write, on_read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the operator and run it."""
        if isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            self._look(func, args)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _look(self, func: Any, args: tuple[Any, ...]) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.on_draw()
        elif "batch_norm" in func.__name__ and "backward" not in func.__name__:
            for tensor in _running_statistics(func, args):
                self.on_write(tensor)
        if _reads_numbers(func, args):
            self.on_read()


def _reads_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    if func is torch.ops.aten.index.Tensor:  # by numbers: the shape is known
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    tags = func.tags
    dynamic, dependent = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
    return dynamic in tags or dependent in tags


def _running_statistics(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))  # noqa: SLF001 - torch has no public name
    if not given.get("training", given.get("train", "update" in func.__name__)):
        return []
    statistics = (given.get("running_mean"), given.get("running_var"))
    return [tensor for tensor in statistics if isinstance(tensor, torch.Tensor)]
