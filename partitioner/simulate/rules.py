"""What instruction lists must obey before they are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import PartitionerError
from partitioner.simulate.instructions import Compute, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.simulate.instructions import Message, Schedule
    from partitioner.simulate.price import PipelinePrice

__all__ = ["require_sound"]

_ORDERS = {
    ("forward", "backward"),
    ("forward", "input_gradient", "weight_gradient"),
}
"""What may run for one micro-batch on one chunk."""


def require_sound(schedule: Schedule, price: PipelinePrice) -> None:
    """Check that every pass is there once, in order, on its rank.

    Raises:
        PartitionerError: Something is missing, doubled or in the wrong place.
    """
    fault = next(_faults(schedule, price), None)
    if fault:
        raise PartitionerError(
            f"the {schedule.name} schedule is not sound: {fault}",
            hint="every chunk needs a forward, then a backward, of every micro-batch",
        )


def _faults(schedule: Schedule, price: PipelinePrice) -> Iterator[str]:
    if len(price.chunks) != schedule.chunks:
        yield f"it has {schedule.chunks} chunks, the price has {len(price.chunks)}"
        return
    boundaries = schedule.chunks - 1
    if {len(price.activation_s), len(price.gradient_s)} != {boundaries}:
        yield f"it has {boundaries} boundaries, the price has another number"
        return
    yield from _pass_faults(schedule)
    yield from _place_faults(schedule)
    yield from _transfer_faults(schedule)


def _pass_faults(schedule: Schedule) -> Iterator[str]:
    order: dict[tuple[int, int], list[str]] = {
        (chunk, micro_batch): []
        for chunk in range(schedule.chunks)
        for micro_batch in range(schedule.micro_batches)
    }
    for rank, steps in enumerate(schedule.lists):
        for step in steps:
            if not isinstance(step, Compute):
                continue
            done = order.get((step.chunk, step.micro_batch))
            if done is None or schedule.rank_of[step.chunk] != rank:
                yield f"{step} does not belong to rank {rank}"
            else:
                done.append(step.kind)
    for (chunk, micro_batch), kinds in order.items():
        if tuple(kinds) not in _ORDERS:
            ran = ", ".join(kinds) or "nothing"
            yield f"for micro-batch {micro_batch}, chunk {chunk} runs {ran}"


def _place_faults(schedule: Schedule) -> Iterator[str]:
    """Yield blocking messages from or to a chunk that does not exist."""
    chunks = range(schedule.chunks)
    for step in (step for steps in schedule.lists for step in steps):
        for transfer in () if isinstance(step, Compute) else step.transfers:
            if transfer.chunk not in chunks or transfer.receiver not in chunks:
                yield f"{transfer} leads out of the pipeline"


def _transfer_faults(schedule: Schedule) -> Iterator[str]:
    """Yield blocking messages without two ends, or sent before they are computed."""
    ends: dict[Transfer, list[int]] = {}
    for rank, steps in enumerate(schedule.lists):
        made: set[Transfer] = set()
        for step in steps:
            if isinstance(step, Compute):
                forward = step.kind == "forward"
                kind: Message = "activation" if forward else "gradient"
                made.add(Transfer(kind, step.chunk, step.micro_batch))
                continue
            for transfer in step.transfers:
                ends.setdefault(transfer, []).append(rank)
                sends = rank == schedule.rank_of[transfer.chunk]
                if sends and transfer not in made:
                    yield f"{transfer} is sent before it is computed"
    for transfer, found in ends.items():
        both = {schedule.rank_of[transfer.chunk], schedule.rank_of[transfer.receiver]}
        if sorted(found) != sorted(both) or len(both) == 1:
            yield f"{transfer} takes place on ranks {found}, not on {sorted(both)}"
