"""What a simulated step took: every event, and the sums that plans are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from partitioner.simulate.instructions import Message, Pass

__all__ = ["Event", "RankUse", "Simulation"]


class Event(NamedTuple):
    """Something that kept a rank busy."""

    rank: int
    kind: Pass | Message
    """A pass, or a message that the rank waited for."""
    chunk: int
    """Of a message: the chunk that sent it."""
    micro_batch: int
    start_s: float
    end_s: float
    held: int
    """Pairs of chunk and micro-batch in flight on the rank while it lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """How one rank spent the step."""

    compute_s: float
    communication_s: float
    """Time in which messages that it had to wait for were under way."""
    first_s: float
    last_s: float
    """Start of its first event and end of its last."""
    in_flight: int
    """Peak of the pairs of chunk and micro-batch whose activations it held."""
    in_flight_bytes: int
    """Peak of the bytes that these held."""

    @property
    def busy_s(self) -> float:
        """Time that was neither waiting nor idle."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One training step under one schedule."""

    schedule: str
    micro_batches: int
    events: tuple[Event, ...]
    """By rank and, within a rank, in order."""
    ranks: tuple[RankUse, ...]

    @property
    def step_s(self) -> float:
        """From the first event to the last: a step with a flush at its end."""
        return max(rank.last_s for rank in self.ranks)

    @property
    def period_s(self) -> float:
        """Time from step to step if no rank waits for another between the two.

        The cost that zero-bubble schedules are compared by: the longest time from a
        rank's first event to its last (Qi et al., *Zero Bubble Pipeline
        Parallelism*, 2024, section 4).
        """
        return max(rank.last_s - rank.first_s for rank in self.ranks)

    @property
    def bubble_shares(self) -> tuple[float, ...]:
        """For each rank the share of the step in which it does nothing."""
        step_s = self.step_s
        if step_s <= 0:
            return (0.0,) * len(self.ranks)
        return tuple(max(0.0, 1 - rank.busy_s / step_s) for rank in self.ranks)

    @property
    def bubble_share(self) -> float:
        """Share of the time of all ranks in which they do nothing."""
        return sum(self.bubble_shares) / len(self.ranks)

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as plain data; the events are in the trace."""
        return {
            "schedule": self.schedule,
            "step_s": self.step_s,
            "bubble_share": self.bubble_share,
            "ranks": [
                {
                    "bubble_share": share,
                    "compute_s": rank.compute_s,
                    "communication_s": rank.communication_s,
                    "in_flight": rank.in_flight,
                    "in_flight_bytes": rank.in_flight_bytes,
                }
                for rank, share in zip(self.ranks, self.bubble_shares, strict=True)
            ],
        }
