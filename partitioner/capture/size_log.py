"""What Python reads of sizes in one forward, and what it decides by them."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

import torch

from partitioner.capture.frames import user_source
from partitioner.capture.records import Decision, SizeReading
from partitioner.capture.tracked import TrackedInt, expression_of

if TYPE_CHECKING:
    from partitioner.capture.records import Ref

__all__ = ["PIECES", "SIZE_QUERIES", "SizeLog"]

SIZE_QUERIES = frozenset(("__get__shape", "__len__", "nelement", "numel", "size"))
"""Queries of a tensor that tell sizes."""

PIECES = frozenset(("chunk", "split", "unsafe_chunk", "unsafe_split"))
"""Functions that return more tensors where a size is larger."""


class Listener(Protocol):
    """Who records, and knows when torch or the recorder itself is at work."""

    silent: bool

    def module_path(self) -> str:
        """Return the path of the module call that is running."""


class SizeLog:
    """What Python read of sizes and decided by them in one forward.

    Args:
        listener: The recorder.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.reads: dict[tuple[Ref, int], int] = {}
        """(tensor, dimension) → number of the read."""
        self.decisions: dict[tuple[Any, ...], Decision] = {}
        self.escapes: dict[str, Any] = {}

    def reading(self) -> SizeReading:
        """Return all of it."""
        decisions = list(self.decisions.values())
        return SizeReading(
            reads=list(self.reads), decisions=decisions, escapes=self.escapes
        )

    def read(self, ref: Ref, dim: int, value: int) -> TrackedInt:
        """Return a size of a recorded tensor as a number that is followed."""
        number = self.reads.setdefault((ref, dim), len(self.reads))
        return TrackedInt.of(value, ("read", number), self)

    def decide(
        self, relation: str, left: Any, right: Any, *, outcome: bool, rounded: bool
    ) -> None:
        """Write down a comparison; the first of equal ones is kept."""
        key = (relation, left, right, rounded)
        if key not in self.decisions:
            self.decisions[key] = Decision(
                relation=relation,
                left=left,
                right=right,
                outcome=outcome,
                module=self.listener.module_path(),
                source=user_source(),
                rounded=rounded,
            )

    def escape(self, expression: Any) -> None:
        """Note that a size goes where it is not followed."""
        self.escapes.setdefault(user_source(), expression)

    def follow(self, tensor: Ref, name: str, args: tuple[Any, ...], out: Any) -> Any:
        """Return what a query of a tensor's sizes gave, as numbers that are followed.

        Args:
            tensor: Which result was asked.
            name: The query, one of ``SIZE_QUERIES``.
            args: The query's arguments, the tensor first.
            out: What it returned.
        """
        if isinstance(out, torch.Size):
            return torch.Size([self.read(tensor, dim, v) for dim, v in enumerate(out)])
        if name == "size":
            return self.read(tensor, args[1] % args[0].dim(), out)
        if name == "__len__":
            self.escape(self.read(tensor, 0, out).expression)
            return out
        reads = [self.read(tensor, dim, v) for dim, v in enumerate(args[0].shape)]
        product = reduce(lambda a, b: ("*", a, b), [r.expression for r in reads] or [1])
        return TrackedInt.of(out, product, self)

    def pieces(self, tensor: Ref, name: str, given: Any, count: int) -> None:
        """Note that a tensor was taken apart into so many pieces.

        Args:
            tensor: Which result it is.
            name: The function, one of ``PIECES``.
            given: Its (args, kwargs), the tensor first.
            count: How many pieces there were.
        """
        args, kwargs = given
        named = [value for key, value in kwargs.items() if key != "dim"]
        by = [*args[1:2], *named][0]
        if not isinstance(by, int):
            return  # a list of sizes
        dim = kwargs.get("dim", args[2] if len(args) > 2 else 0) % args[0].dim()  # noqa: PLR2004 - (tensor, by, dim)
        length = self.read(tensor, dim, args[0].shape[dim]).expression
        size = expression_of(by, self)
        if name.endswith("chunk"):
            size = _ceil_of(length, size)
        pieces = _ceil_of(length, size)
        self.decide("==", pieces, count, outcome=True, rounded=True)


def _ceil_of(dividend: Any, divisor: Any) -> Any:
    return ("ceil", ("/", dividend, divisor))
