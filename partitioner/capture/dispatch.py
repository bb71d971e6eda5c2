"""Operators below autograd: run on fakes at once, and looked at on the way."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.capture.fake_cache import FakeCache
from partitioner.capture.frames import user_source
from partitioner.errors import DataDependentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FakeDispatch", "OperatorWatch"]


_DEVICE = torch.ops.prim.device.default


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
        self.cache = FakeCache(fakes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator."""
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].device  # autograd asks at every turn
        return self._run(func, types, args, kwargs or {})

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            source = user_source()
            message = f"torch.{func.__name__} (an operator of functions) cannot be run"
            raise DataDependentError(
                f"{message} on fake tensors, at {source}",
                hint="use torch.where, or Python's own if in a submodule of its own",
                source=source,
            )
        if tuple(types) != (FakeTensor,):
            return func(*args, **kwargs)
        if func is torch.ops.aten._unsafe_view.default:  # noqa: SLF001 - an operator's name
            # Below autograd it is a view, which the cache of fakes knows.
            func = torch.ops.aten.view.default
        return self.cache.run(func, types, args, kwargs)


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

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Look at the operator and run it."""
        if isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            self._look(func, args)
        return super()._run(func, types, args, kwargs)

    def _look(self, func: Any, args: tuple[Any, ...]) -> None:
        kind = _kind(func)
        if kind.draws:
            self.on_draw()
        elif kind.normalises:
            for tensor in _running_statistics(func, args):
                self.on_write(tensor)
        if kind.reads or (kind.by_index and _has_mask(args[1])):
            self.on_read()


class _Kind(NamedTuple):
    """What an operator may do besides computing."""

    draws: bool
    normalises: bool
    """Whether it may update batch statistics."""
    reads: bool
    """Whether its result, or its shape, follows the numbers in its arguments."""
    by_index: bool
    """Whether it does so if it is given a mask."""


@cache
def _kind(func: Any) -> _Kind:
    tags, name = func.tags, func.__name__
    dynamic, dependent = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
    by_index = func is torch.ops.aten.index.Tensor  # by numbers: the shape is known
    return _Kind(
        draws=torch.Tag.nondeterministic_seeded in tags,
        normalises="batch_norm" in name and "backward" not in name,
        reads=not by_index and (dynamic in tags or dependent in tags),
        by_index=by_index,
    )


def _has_mask(indices: Iterable[torch.Tensor | None]) -> bool:
    masks = (torch.bool, torch.uint8)
    return any(index is not None and index.dtype in masks for index in indices)


def _running_statistics(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))  # noqa: SLF001 - torch has no public name
    if not given.get("training", given.get("train", "update" in func.__name__)):
        return []
    statistics = (given.get("running_mean"), given.get("running_var"))
    return [tensor for tensor in statistics if isinstance(tensor, torch.Tensor)]
