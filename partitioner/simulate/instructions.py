"""What the ranks of a pipeline do, in order: computations and blocking exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "Compute",
    "Exchange",
    "Instruction",
    "Message",
    "Pass",
    "Schedule",
    "Transfer",
]

Pass = Literal["forward", "backward", "input_gradient", "weight_gradient"]
"""``backward`` is both gradients at once; zero-bubble schedules run them apart."""
Message = Literal["activation", "gradient"]


class Compute(NamedTuple):
    """One pass of one micro-batch through one chunk."""

    kind: Pass
    chunk: int
    micro_batch: int


class Transfer(NamedTuple):
    """A message to a neighbouring chunk: activations go up, gradients go down."""

    kind: Message
    chunk: int
    """The chunk that sends."""
    micro_batch: int

    @property
    def receiver(self) -> int:
        """The chunk that receives."""
        return self.chunk + (1 if self.kind == "activation" else -1)

    @property
    def boundary(self) -> int:
        """The boundary it crosses, numbered by the chunk before it."""
        return min(self.chunk, self.receiver)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that a rank sends or receives at once; it waits until all are through.

    A message starts when both its ends have come to it.
    """

    transfers: tuple[Transfer, ...]


Instruction = Compute | Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Instruction lists of all ranks for one training step.

    A message that no :class:`Exchange` names travels by itself: it leaves when it is
    computed, holds up nobody but the chunk that waits for it, and needs no time
    between two chunks of one rank.
    """

    name: str
    micro_batches: int
    rank_of: tuple[int, ...]
    """Rank of each chunk; a chunk is a stretch of the model, numbered from 0."""
    lists: tuple[tuple[Instruction, ...], ...]
    """One list for each rank."""
    buffered: bool = False
    """A message that travels by itself comes into the one buffer that the receiving
    chunk has for its kind, so not before the last one is out: an activation as its
    forward begins, a gradient as its backward ends. A rank sends a gradient once the
    one before has come."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.lists)

    @property
    def chunks(self) -> int:
        """Number of chunks, over all ranks."""
        return len(self.rank_of)
