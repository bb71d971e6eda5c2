"""Something that takes training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

__all__ = ["EngineRunner", "Runner"]


class Runner(Protocol):
    """A variant that has been built on this rank."""

    cut: Sequence[int | str]

    def step(self) -> Tensor:
        """Train on one batch and return its loss, without waiting for it."""

    def close(self) -> None:
        """Let go of everything."""


class EngineRunner:
    """A DeepSpeed pipeline engine and its batches.

    Args:
        engine: What ``deepspeed.initialize`` or ``Plan.initialize`` returned.
        batches: Yields micro-batches for ever.
        cut: Where the stages begin, for the record.
    """

    def __init__(
        self, engine: Any, batches: Iterator[Any], cut: Sequence[int | str]
    ) -> None:
        self.engine = engine
        self.cut = cut
        self._batches = batches

    def step(self) -> Tensor:
        """Train on one batch."""
        loss: Tensor = self.engine.train_batch(self._batches)
        return loss

    def close(self) -> None:
        """Let go of the engine and what it holds on the device."""
        self.engine.destroy()
        # Its last loss refers to it by hooks of autograd, which Python does not see.
        vars(self.engine).clear()
        del self.engine
