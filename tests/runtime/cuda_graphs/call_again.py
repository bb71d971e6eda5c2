"""A recorder for any device, which calls what it has recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from partitioner.runtime.cuda_graphs.refusal import NotReplayedError

__all__ = ["CallAgain"]


class Pool:
    """What a forward that was recorded here left for its backward: how to redo it."""

    def __init__(self) -> None:
        self.redo: Callable[[], Any] = lambda: None


class CallAgain:
    """Stands in for CUDA graphs where there is no CUDA: a replay calls the function.

    What it makes comes into the same memory each time, as with a graph.

    Args:
        written: Names the tensors that functions write: a recording has no effect.
    """

    device_type = "cpu"

    def __init__(self, written: Callable[[], Iterable[Tensor]]) -> None:
        self.common_pool = Pool()
        self._written = written

    def pool(self) -> Pool:
        return Pool()

    def random_state(self) -> bytes:
        return bytes(torch.get_rng_state().numpy())

    def record(
        self, function: Callable[[], list[Any]], pool: Pool
    ) -> tuple[list[Any], Callable[[], None]]:
        with self._no_effect():
            made = _made(function)
            # A backward that is recorded uses up what its forward has left.
            pool.redo()

        @torch.no_grad()
        def replay() -> None:
            pool.redo = self._again(function)
            for kept, new in zip(made, function(), strict=True):
                if kept is not None:
                    kept.data.copy_(new)  # autograd does not see what a graph writes

        return made, replay

    @contextmanager
    def _no_effect(self) -> Iterator[None]:
        before = [(each, each.detach().clone()) for each in self._written()]
        with torch.random.fork_rng(devices=[]):
            yield
        for tensor, values in before:
            tensor.data.copy_(values)

    def _again(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Return what runs a function with what is random and written now."""
        state = torch.get_rng_state()
        now = [(each, each.detach().clone()) for each in self._written()]

        def again() -> None:
            torch.set_rng_state(state)
            for tensor, values in now:
                tensor.data.copy_(values)
            function()

        return again


def _made(function: Callable[[], list[Any]]) -> list[Any]:
    try:
        return function()
    except Exception as error:
        raise NotReplayedError(str(error)) from error
