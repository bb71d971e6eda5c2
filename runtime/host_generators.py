"""Random generators of the host: what they are at, and how to return to it."""

from __future__ import annotations

import pickle
import random
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HostGenerators", "own_generators", "return_to", "state_of"]

KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def own_generators(module: nn.Module) -> list[Any]:
    """Return the generators that a module and its parts keep as attributes.

    Those of torch (on any device), of numpy, and of ``random``.

    Args:
        module: Searched with its submodules; of an attribute that is a container,
            the items are searched as well.
    """
    found: dict[int, Any] = {}
    for part in module.modules():
        for value in vars(part).values():
            items = value.values() if isinstance(value, dict) else value
            alone = not isinstance(value, dict | list | tuple | set | deque)
            for item in (value,) if alone else items:
                if isinstance(item, KINDS):
                    found[id(item)] = item
    return list(found.values())


def state_of(generator: Any) -> Any:
    """Return the state of a generator of any kind."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def return_to(generator: Any, state: Any) -> None:
    """Return to what :func:`state_of` said earlier."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


class HostGenerators:
    """The states of ``random``, of numpy's global generator, and of others.

    Args:
        others: Generators of any kind.
    """

    def __init__(self, others: Sequence[Any]) -> None:
        self._others = others
        self._states: tuple[Any, ...] | None = None

    def save(self) -> None:
        """Remember the present states."""
        self._states = self._present()

    def moved(self) -> bool:
        """Whether the present states are others than those that were saved."""
        pairs = zip(self._present(), self._states or (), strict=True)
        return any(_bytes_of(now) != _bytes_of(saved) for now, saved in pairs)

    def go_back(self) -> None:
        """Return to the states that were saved."""
        self._set_states(self._states)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Go back to the states that were saved, and return to the present at exit."""
        present = self._present()
        try:
            self.go_back()
            yield
        finally:
            self._set_states(present)

    def _present(self) -> tuple[Any, ...]:
        others = map(state_of, self._others)
        return random.getstate(), np.random.get_state(), *others

    def _set_states(self, states: tuple[Any, ...] | None) -> None:
        if states is None:
            return
        plain, numpy, *others = states
        random.setstate(plain)
        np.random.set_state(numpy)
        for generator, state in zip(self._others, others, strict=True):
            return_to(generator, state)


def _bytes_of(state: Any) -> bytes:
    """Return a state as what can be compared."""
    return bytes(state.numpy()) if isinstance(state, Tensor) else pickle.dumps(state)
