"""Loaders that give every stage the same batches, whatever a rank itself has drawn.

Every rank runs Lightning's loop over a loader of its own. A shuffling sampler, workers
and augmentation draw from the process's generators, which the stages' dropout moves
apart. So loaders draw from one stream of random numbers, the first rank's as it was
before the first batch, which every rank keeps aside and goes on with alike. Without
random numbers in the model, batches come in the order of a single process.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from partitioner.errors import RuntimeGuardError
from partitioner.lightning.batches import digest
from partitioner.runtime.agreement import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DataStream", "SharedLoader", "check_same", "isolated"]


@contextmanager
def isolated() -> Iterator[None]:
    """Draw inside, and go on outside as if nothing had been drawn."""
    before = _states()
    try:
        yield
    finally:
        _restore(before)


class DataStream:
    """The random numbers of all loaders, the same on all ranks of a replica.

    Args:
        replica: This rank's.
        is_rehearsal: Whether what is drawn now is not to count (a sanity check).
    """

    def __init__(self, replica: int, is_rehearsal: Callable[[], bool]) -> None:
        shared = [_states()]
        dist.broadcast_object_list(shared, src=0)
        self._states = shared[0]
        self._is_rehearsal = is_rehearsal
        if replica:
            with isolated():
                _restore(self._states)
                torch.default_generator.manual_seed(torch.initial_seed() + replica)
                self._states = _states()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw from this stream inside."""
        before = _states()
        _restore(self._states)
        try:
            yield
        finally:
            if not self._is_rehearsal():
                self._states = _states()
            _restore(before)


class SharedLoader:
    """A loader of the user's that draws from a stream.

    Everything else about it is the user's own: its length, dataset, sampler, state.

    Args:
        loader: The user's.
        stream: What it draws from.
    """

    def __init__(self, loader: Any, stream: DataStream) -> None:
        self._loader = loader
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the user's loader has."""
        if name in {"_loader", "_stream"}:  # not there yet: it is being copied
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""
        with self._stream.drawing():
            batches = iter(self._loader)
        return self._each(batches)

    def _each(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._stream.drawing():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch


def check_same(batch: Any, replica: int) -> None:
    """Refuse batches that differ among the stages of one replica.

    Args:
        batch: This rank's; every rank must call.
        replica: This rank's.

    Raises:
        RuntimeGuardError: The first stage would get other samples than the last one.
    """
    told = gather((replica, digest(batch)))
    for number, first in dict(reversed(told)).items():
        ranks = [r for r, (n, text) in enumerate(told) if n == number and text != first]
        if ranks:
            raise RuntimeGuardError(
                f"rank {ranks[0]} gets another batch than the first rank of its "
                f"replica ({told[ranks[0]][1]}; {first})",
                hint="every rank must load the same: no sampler and no stream that is "
                "divided by the rank, and no random number that is drawn elsewhere "
                "than in the loader",
            )


def _states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _restore(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
