"""Schedules of DeepSpeed, read from the instructions that its engine runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.pipe import schedule as deepspeed

from partitioner.errors import OptionError
from partitioner.runtime.eager_schedule import EagerSchedule
from partitioner.simulate.instructions import Compute, Exchange, Schedule, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partitioner.simulate.instructions import Instruction, Message

__all__ = ["dualpipev", "eager", "one_f_one_b"]

_TRANSFERS: dict[Any, tuple[Message, int]] = {
    deepspeed.SendActivation: ("activation", 0),
    deepspeed.RecvActivation: ("activation", -1),
    deepspeed.SendGrad: ("gradient", 0),
    deepspeed.RecvGrad: ("gradient", 1),
}
"""What is moved, and how far its sender is from the chunk of the instruction."""


def one_f_one_b(stages: int, micro_batches: int, *, blocking: bool = True) -> Schedule:
    """DeepSpeed's ``TrainSchedule``: one forward, one backward, with a flush.

    Args:
        stages: Number of stages, one for each rank.
        micro_batches: Micro-batches of one step.
        blocking: Send and receive as the engine does, each end waiting for the other;
            False: let messages travel by themselves, to compare with other schedules.
    """
    rank_of = tuple(range(stages))
    return Schedule(
        name="1f1b",
        micro_batches=micro_batches,
        rank_of=rank_of,
        lists=tuple(
            tuple(
                step
                for step in _read(
                    deepspeed.TrainSchedule(micro_batches, stages, rank), (rank,)
                )
                if blocking or isinstance(step, Compute)
            )
            for rank in range(stages)
        ),
    )


def eager(stages: int, micro_batches: int) -> Schedule:
    """The plan engine's ``EagerSchedule``: 1F1B that starts further ahead.

    Args:
        stages: Number of stages, one for each rank.
        micro_batches: Micro-batches of one step.
    """
    return Schedule(
        name="eager-1f1b",
        micro_batches=micro_batches,
        rank_of=tuple(range(stages)),
        lists=tuple(
            tuple(
                step
                for step in _read(EagerSchedule(micro_batches, stages, rank), (rank,))
                if isinstance(step, Compute)
            )
            for rank in range(stages)
        ),
        buffered=True,
    )


def dualpipev(ranks: int, micro_batches: int) -> Schedule:
    """DeepSpeed's ``DualPipeVSchedule``: rank r runs chunks r and ``2·ranks - 1 - r``.

    Weight gradients are not put off: DeepSpeed computes them in the backward pass.

    Raises:
        OptionError: There are fewer micro-batches than twice the ranks.
    """
    if micro_batches < 2 * ranks:
        raise OptionError(
            f"dualpipev cannot run {micro_batches} micro-batches on {ranks} ranks",
            hint=f"give at least {2 * ranks} micro-batches",
        )
    return Schedule(
        name="dualpipev",
        micro_batches=micro_batches,
        rank_of=(*range(ranks), *reversed(range(ranks))),
        lists=tuple(
            tuple(
                _read(
                    deepspeed.DualPipeVSchedule(micro_batches, ranks, rank),
                    (rank, 2 * ranks - 1 - rank),
                )
            )
            for rank in range(ranks)
        ),
    )


def _read(schedule: Any, chunks: tuple[int, ...]) -> Iterator[Instruction]:
    """Yield a rank's instructions; micro-batches come in order in each kind.

    Args:
        schedule: DeepSpeed's schedule of one rank.
        chunks: The chunk of each of its phases.
    """
    seen: Counter[tuple[type, int]] = Counter()
    queue: list[Transfer] = []
    steps: Iterable[list[Any]] = schedule.steps()
    queues = isinstance(schedule, deepspeed.DualPipeVSchedule)
    for instruction in (one for step in steps for one in step):
        kind, phase = type(instruction), getattr(instruction, "phase", 0)
        number = seen[kind, phase]
        seen[kind, phase] += 1
        chunk = chunks[phase]
        if kind is deepspeed.ForwardPass:
            yield Compute("forward", chunk, number)
        elif kind is deepspeed.BackwardPass:
            yield Compute("backward", chunk, number)
        elif kind in _TRANSFERS:
            what, offset = _TRANSFERS[kind]
            queue.append(Transfer(what, chunk + offset, number))
        if queue and (not queues or kind is deepspeed.CommitP2P):
            yield Exchange(tuple(queue))
            queue.clear()
