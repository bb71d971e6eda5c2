"""What surrounds a recorded call: modes, random generators, operators, interception."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from partitioner.capture.frames import user_source
from partitioner.errors import DataDependentError
from partitioner.graph import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CallWatcher",
    "OperatorWatch",
    "current_region",
    "generator_marks",
    "intercepted",
    "restored_generators",
]


def current_region() -> Region:
    """Return the modes that are on: gradients, autocast."""
    autocast = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
    return Region(grad_enabled=torch.is_grad_enabled(), autocast=autocast)


def generator_marks() -> tuple[Any, ...]:
    """Return marks that change when numpy's or Python's generator is drawn from."""
    numpy = sys.modules.get("numpy")
    state = random.getstate()
    marks = (state[1][-1], state[1][0], state[2])
    if numpy is None:
        return marks
    _, words, *rest = numpy.random.get_state()
    return (*marks, int(words[0]), *rest)


@contextmanager
def restored_generators() -> Iterator[list[bool]]:
    """Put numpy's and Python's generators back; tell whether they were drawn from."""
    before = generator_marks()
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    drawn: list[bool] = []
    try:
        yield drawn
    finally:
        drawn.append(generator_marks() != before)
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


class OperatorWatch(TorchDispatchMode):
    """Tells of each operator that takes random numbers or updates batch statistics.

    Fakes move no generator, so the operators' own tag is what tells; and batch norm's
    operators write their statistics without moving the tensors' version counters.

    Args:
        on_draw: Called when an operator draws.
        on_write: Called with a tensor that is written.
        on_read: Called when an operator's result, or its shape, follows the numbers
            in its arguments.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        on_draw: Callable[[], None],
        on_write: Callable[[torch.Tensor], None],
        on_read: Callable[[], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_draw, self.on_write, self.on_read = on_draw, on_write, on_read

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Look at the operator and run it."""
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - no public name
            source = user_source()
            message = f"torch.{func.__name__} (an operator of functions) cannot be run"
            raise DataDependentError(
                f"{message} on fake tensors, at {source}",
                hint="use torch.where, or Python's own if in a submodule of its own",
                source=source,
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.on_draw()
        elif "batch_norm" in func.__name__ and "backward" not in func.__name__:
            for tensor in _running_statistics(func, args):
                self.on_write(tensor)
        if _reads_numbers(func, args):
            self.on_read()
        return func(*args, **(kwargs or {}))


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


class CallWatcher(Protocol):
    """Who wants to see every module call and every custom autograd function."""

    def call_module(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Call ``original(module, *args, **kwargs)``."""

    def call_custom(
        self, cls: type, apply: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call ``apply(*args, **kwargs)``, the forward of ``cls``."""


@contextmanager
def intercepted(watcher: CallWatcher) -> Iterator[None]:
    """Route module calls and custom autograd functions through ``watcher``.

    The model's own activation checkpointing does nothing meanwhile: what to recompute
    is for the plan to decide.
    """
    original = nn.Module.__call__
    apply = torch.autograd.Function.__dict__["apply"]

    def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return watcher.call_module(original, module, args, kwargs)

    def call_apply(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        if cls is torch_checkpoint.CheckpointFunction:
            run, _preserve_rng_state, *inputs = args
            return run(*inputs)
        return watcher.call_custom(cls, apply.__get__(None, cls), args, kwargs)

    _set(nn.Module, "__call__", call)
    _set(torch.autograd.Function, "apply", classmethod(call_apply))
    try:
        with _no_checkpointing():
            yield
    finally:
        _set(nn.Module, "__call__", original)
        _set(torch.autograd.Function, "apply", apply)


@contextmanager
def _no_checkpointing() -> Iterator[None]:
    """Let ``torch.utils.checkpoint(…, use_reentrant=False)`` keep all it would drop."""
    name = "_checkpoint_without_reentrant_generator"
    original = getattr(torch_checkpoint, name)

    def keep(*_: Any, **__: Any) -> Iterator[None]:
        yield

    setattr(torch_checkpoint, name, keep)
    try:
        yield
    finally:
        setattr(torch_checkpoint, name, original)


def _set(owner: type, name: str, value: Any) -> None:
    setattr(owner, name, value)
