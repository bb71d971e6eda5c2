"""Runs the instruction lists of a schedule on a clock: Schedule → Simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partitioner.errors import PartitionerError
from partitioner.simulate.instructions import Compute, Exchange, Transfer
from partitioner.simulate.rules import require_sound
from partitioner.simulate.simulation import Event, RankUse, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partitioner.simulate.instructions import Instruction, Schedule
    from partitioner.simulate.price import PipelinePrice

__all__ = ["simulate"]


def simulate(schedule: Schedule, price: PipelinePrice) -> Simulation:
    """Run one training step.

    Every rank runs its list in order, one instruction after the other. A pass starts
    when its rank is free and what it reads has arrived. A blocking exchange takes the
    time of both ranks (see :class:`Exchange`). Links have no queue: two messages
    under way at once do not slow each other down. The optimizer's step and the sums
    of gradients over replicas are not part of it.

    Args:
        schedule: Instruction lists.
        price: Times and bytes; one entry per chunk, one per boundary between chunks.

    Returns:
        When every event ran, and how busy and how full every rank was.

    Raises:
        PartitionerError: The lists miss a pass, run one twice or too early, or wait
            for each other for ever; or the price is of another number of chunks.
    """
    require_sound(schedule, price)
    clock = (_BufferedClock if schedule.buffered else _Clock)(schedule, price)
    clock.run()
    return Simulation(
        schedule=schedule.name,
        micro_batches=schedule.micro_batches,
        events=tuple(event for rank in clock.ranks for event in rank.events),
        ranks=tuple(_use(rank) for rank in clock.ranks),
    )


@dataclass(slots=True)
class _Rank:
    """A rank's place in its list, its clock, and what it holds."""

    index: int
    instructions: tuple[Instruction, ...]
    place: int = 0
    now_s: float = 0.0
    posted: bool = False
    """Whether the exchange at ``place`` has been announced."""
    held: int = 0
    held_bytes: int = 0
    peak: int = 0
    peak_bytes: int = 0
    events: list[Event] = field(default_factory=list)

    def took(self, work: Compute, duration_s: float, in_flight_bytes: int) -> None:
        """Record a pass; activations are held from its start, freed at its end."""
        if work.kind == "forward":
            self.held += 1
            self.held_bytes += in_flight_bytes
            self.peak = max(self.peak, self.held)
            self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.events.append(self.event(work, self.now_s, self.now_s + duration_s))
        self.now_s += duration_s
        if work.kind in ("backward", "weight_gradient"):
            self.held -= 1
            self.held_bytes -= in_flight_bytes

    def event(self, what: Compute | Transfer, start_s: float, end_s: float) -> Event:
        """Return an event of this rank."""
        return Event(
            self.index,
            what.kind,
            what.chunk,
            what.micro_batch,
            start_s,
            end_s,
            self.held,
        )


class _Clock:
    """All ranks and the messages between them."""

    def __init__(self, schedule: Schedule, price: PipelinePrice) -> None:
        self.price = price
        self.rank_of = schedule.rank_of
        self.ranks = [_Rank(i, steps) for i, steps in enumerate(schedule.lists)]
        self.arrived: dict[Transfer, float] = {}
        self.posts: dict[Transfer, float] = {}
        """When the first end of a blocking message came to it."""
        self.blocking = {
            transfer
            for steps in schedule.lists
            for step in steps
            if isinstance(step, Exchange)
            for transfer in step.transfers
        }

    def run(self) -> None:
        """Advance every rank as far as it goes, until all lists are done."""
        moving = True
        while moving:
            moving = False
            for rank in self.ranks:
                while self._waits(rank) and self._advance(rank):
                    moving = True
        stuck = [rank for rank in self.ranks if self._waits(rank)]
        if stuck:
            first = stuck[0]
            raise PartitionerError(
                f"the schedule stops: rank {first.index} waits for ever at instruction"
                f" {first.place}, {first.instructions[first.place]}",
                hint="order its sends and receives like its neighbours'",
            )

    def _waits(self, rank: _Rank) -> bool:
        """Whether a rank has still something to do."""
        return rank.place < len(rank.instructions)

    def _advance(self, rank: _Rank) -> bool:
        """Run the next instruction of a rank, if it can start; say whether it moved."""
        step = rank.instructions[rank.place]
        if isinstance(step, Compute):
            moved = self._compute(rank, step)
        else:
            moved = self._exchange(rank, step)
        if moved:
            rank.place += 1
        return moved

    def _compute(self, rank: _Rank, work: Compute) -> bool:
        needed = self._needs(work)
        if needed is not None:
            if needed not in self.arrived:
                return False
            rank.now_s = max(rank.now_s, self.arrived[needed])
        in_flight_bytes = self.price.chunks[work.chunk].in_flight_bytes
        rank.took(work, self.price.compute_s(work), in_flight_bytes)
        self._send(rank, self._sends(work))
        return True

    def _send(self, rank: _Rank, sent: Transfer | None) -> None:
        if sent is not None and sent not in self.blocking:
            self.arrived[sent] = rank.now_s + self._travel_s(sent)

    def _needs(self, work: Compute) -> Transfer | None:
        """Return the message that a pass reads; its own forward ran on its rank."""
        if work.kind == "forward":
            if work.chunk > 0:
                return Transfer("activation", work.chunk - 1, work.micro_batch)
        elif work.kind != "weight_gradient" and work.chunk < len(self.rank_of) - 1:
            return Transfer("gradient", work.chunk + 1, work.micro_batch)
        return None

    def _sends(self, work: Compute) -> Transfer | None:
        if work.kind == "forward":
            if work.chunk < len(self.rank_of) - 1:
                return Transfer("activation", work.chunk, work.micro_batch)
        elif work.kind != "weight_gradient" and work.chunk > 0:
            return Transfer("gradient", work.chunk, work.micro_batch)
        return None

    def _travel_s(self, transfer: Transfer) -> float:
        here, there = self.rank_of[transfer.chunk], self.rank_of[transfer.receiver]
        return 0.0 if here == there else self.price.transfer_s(transfer)

    def _exchange(self, rank: _Rank, exchange: Exchange) -> bool:
        if not rank.posted:
            rank.posted = True
            for transfer in exchange.transfers:
                if transfer in self.posts:
                    start_s = max(self.posts[transfer], rank.now_s)
                    self.arrived[transfer] = start_s + self._travel_s(transfer)
                else:
                    self.posts[transfer] = rank.now_s
        if any(transfer not in self.arrived for transfer in exchange.transfers):
            return False
        for transfer in exchange.transfers:
            end_s = self.arrived[transfer]
            start_s = end_s - self._travel_s(transfer)
            rank.events.append(rank.event(transfer, start_s, end_s))
            rank.now_s = max(rank.now_s, end_s)
        rank.posted = False
        return True


class _BufferedClock(_Clock):
    """Messages that travel by themselves, into buffers (``Schedule.buffered``)."""

    def __init__(self, schedule: Schedule, price: PipelinePrice) -> None:
        super().__init__(schedule, price)
        self.sent_s: dict[Transfer, float] = {}
        self.emptied_s: dict[tuple[str, int], float] = {}
        """When the buffer of a chunk for a kind of message was free again."""
        self.to_send: dict[int, Transfer] = {}
        """The gradient that a rank has made and not sent."""

    def _waits(self, rank: _Rank) -> bool:
        return super()._waits(rank) or rank.index in self.to_send

    def _advance(self, rank: _Rank) -> bool:
        gradient = self.to_send.get(rank.index)
        if gradient is None:
            return super()._advance(rank)
        if gradient.micro_batch:
            before = gradient._replace(micro_batch=gradient.micro_batch - 1)
            if before not in self.arrived:
                return False
            rank.now_s = max(rank.now_s, self.arrived[before])
        self.sent_s[gradient] = rank.now_s
        del self.to_send[rank.index]
        return True

    def _compute(self, rank: _Rank, work: Compute) -> bool:
        needed = self._needs(work)
        if needed is not None:
            if needed not in self.sent_s:
                return False
            place = (needed.kind, work.chunk)
            leaves_s = max(self.sent_s[needed], self.emptied_s.get(place, 0.0))
            self.arrived[needed] = leaves_s + self._travel_s(needed)
            began_s = max(rank.now_s, self.arrived[needed])
        super()._compute(rank, work)
        if needed is not None:
            gradient = needed.kind == "gradient"
            self.emptied_s[place] = rank.now_s if gradient else began_s
        return True

    def _send(self, rank: _Rank, sent: Transfer | None) -> None:
        if sent is not None and sent.kind == "gradient":
            self.to_send[rank.index] = sent
        elif sent is not None:
            self.sent_s[sent] = rank.now_s


def _use(rank: _Rank) -> RankUse:
    messages = [e for e in rank.events if e.kind in ("activation", "gradient")]
    passes = [e for e in rank.events if e.kind not in ("activation", "gradient")]
    return RankUse(
        compute_s=sum(event.end_s - event.start_s for event in passes),
        communication_s=_covered_s(messages),
        first_s=min(event.start_s for event in rank.events),
        last_s=rank.now_s,
        in_flight=rank.peak,
        in_flight_bytes=rank.peak_bytes,
    )


def _covered_s(events: Iterable[Event]) -> float:
    """Return the time in which at least one of the events lasts."""
    total_s = until_s = 0.0
    for event in sorted(events, key=lambda event: event.start_s):
        total_s += max(0.0, event.end_s - max(event.start_s, until_s))
        until_s = max(until_s, event.end_s)
    return total_s
