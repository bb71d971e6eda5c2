"""Leave a module and all random generators as they were before a forward."""

from __future__ import annotations

import random
import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from partitioner.runtime.host_generators import own_generators, return_to, state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

__all__ = ["generator_states", "restore_generators", "untouched"]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put back every module's attributes and all generators' state afterwards.

    Lists, dicts, sets and deques among the attributes get their items back: buffers,
    hooks, and what a forward appends to. Generators among them get their state back.
    """
    attributes = [(module, dict(module.__dict__)) for module in model.modules()]
    contents = [
        (value, _items(value))
        for _, saved in attributes
        for value in saved.values()
        if isinstance(value, list | dict | set | deque)
    ]
    generators = generator_states()
    own = [(generator, state_of(generator)) for generator in own_generators(model)]
    try:
        yield
    finally:
        for module, saved in attributes:
            module.__dict__.clear()
            module.__dict__.update(saved)
        for container, items in contents:
            _put_back(container, items)
        restore_generators(generators)
        for generator, state in own:
            return_to(generator, state)


def _items(container: Any) -> list[Any]:
    return list(container.items() if isinstance(container, dict) else container)


def _put_back(container: Any, items: list[Any]) -> None:
    """Let a container hold these items; one that does is not touched: it may refuse."""
    if list(map(_identity, _items(container))) == list(map(_identity, items)):
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(items)
    else:
        container.extend(items)


def _identity(item: Any) -> Any:
    """Return what tells items apart without comparing them."""
    return tuple(map(id, item)) if type(item) is tuple else id(item)


def generator_states() -> dict[str, Any]:
    """Return the state of torch's, numpy's and Python's global generators."""
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
    }
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_generators(states: Mapping[str, Any]) -> None:
    """Set the generators to what :func:`generator_states` returned."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["random"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
