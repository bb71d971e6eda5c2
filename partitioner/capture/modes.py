"""What surrounds a recorded call: modes, random generators, interception."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn

from partitioner.graph import Region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CallWatcher",
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
