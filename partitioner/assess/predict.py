"""Simulates an assignment under a schedule by its name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from partitioner.errors import OptionError
from partitioner.simulate import (
    gpipe,
    interleaved,
    price_assignment,
    simulate,
    zero_bubble,
)
from partitioner.simulate.from_deepspeed import dualpipev, eager, one_f_one_b

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.simulate import Schedule, Simulation
    from partitioner.solve import Problem

__all__ = ["SCHEDULES", "predict", "schedule_for"]

CHUNKS_PER_RANK = 2
"""Stages that one rank runs under ``interleaved`` and ``dualpipev``."""

SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "1f1b": one_f_one_b,
    "eager-1f1b": eager,
    "dualpipev": lambda stages, micro_batches: dualpipev(
        stages // CHUNKS_PER_RANK, micro_batches
    ),
    "gpipe": gpipe,
    "interleaved": lambda stages, micro_batches: interleaved(
        stages // CHUNKS_PER_RANK, micro_batches, CHUNKS_PER_RANK
    ),
    "zb-h1": lambda *sizes: zero_bubble(*sizes, full=False),
    "zb-h2": lambda *sizes: zero_bubble(*sizes, full=True),
}
"""(stages, micro-batches) → instruction lists."""


@lru_cache(maxsize=4)  # a comparison simulates several splits under one schedule
def schedule_for(name: str, stages: int, micro_batches: int) -> Schedule:
    """Return a schedule in which every stage is a chunk.

    Args:
        name: A key of ``SCHEDULES``.
        stages: Number of stages.
        micro_batches: Micro-batches of one step.

    Raises:
        OptionError: The schedule is not known, or cannot run these numbers.
    """
    if name not in SCHEDULES:
        hint = f"choose from {', '.join(SCHEDULES)}"
        raise OptionError(f"schedule is {name!r}", hint=hint)
    if name in ("dualpipev", "interleaved") and stages % CHUNKS_PER_RANK:
        raise OptionError(
            f"{name} runs {CHUNKS_PER_RANK} stages on every rank, which {stages}"
            " stages do not divide into",
            hint=f"give a multiple of {CHUNKS_PER_RANK} stages",
        )
    return SCHEDULES[name](stages, micro_batches)


def predict(
    problem: Problem,
    stage_of: Sequence[int],
    recomputed: Sequence[bool],
    schedule: str,
) -> Simulation:
    """Simulate one training step of an assignment.

    Args:
        problem: What was placed.
        stage_of: Stage of each unit.
        recomputed: Whether each unit is recomputed in backward.
        schedule: A key of ``SCHEDULES``.

    Raises:
        OptionError: The schedule is not known, or cannot run these numbers.
    """
    lists = schedule_for(schedule, problem.stages, problem.micro_batches)
    return simulate(lists, price_assignment(problem, stage_of, recomputed))
