"""Micro-batches each stage holds at its peak, read from DeepSpeed's own schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepspeed.runtime.pipe.schedule import (
    BackwardPass,
    DualPipeVSchedule,
    ForwardPass,
    PipeSchedule,
    TrainSchedule,
)

from partitioner.errors import OptionError
from partitioner.runtime.eager_schedule import EagerSchedule

if TYPE_CHECKING:
    from partitioner.solve.problem import Schedule

__all__ = ["in_flight"]


def in_flight(
    stages: int, micro_batches: int, schedule: Schedule = "1f1b"
) -> tuple[int, ...]:
    """Return the peak number of micro-batches whose activations each stage holds.

    Interprets the very instructions the engine runs: a forward pass adds one set of
    saved activations, a backward pass frees one. Under 1F1B (Narayanan et al.,
    PipeDream-Flush, ICML 2021) that is ``min(stages - s, micro_batches)``, under
    eager 1F1B ``min(2 (stages - s) - 1, micro_batches)``.

    Args:
        stages: Number of pipeline stages.
        micro_batches: Micro-batches of one step.
        schedule: "1f1b", "eager-1f1b", or "dualpipev": rank r of S runs the stages r
            and 2S - 1 - r.

    Returns:
        One count per stage.

    Raises:
        OptionError: DualPipeV with fewer than two micro-batches per rank.
    """
    if schedule != "dualpipev":
        kind = EagerSchedule if schedule == "eager-1f1b" else TrainSchedule
        return tuple(
            _peak(kind(micro_batches, stages, stage)) for stage in range(stages)
        )
    ranks = stages // 2
    if micro_batches < stages:
        raise OptionError(
            f"DualPipeV on {ranks} ranks needs at least {stages} micro-batches, not"
            f" {micro_batches}",
            hint=f"use micro_batches={stages} or more",
        )
    runs = [DualPipeVSchedule(micro_batches, ranks, rank) for rank in range(ranks)]
    outwards = [_peak(run, phase=0) for run in runs]
    return (*outwards, *(_peak(run, phase=1) for run in reversed(runs)))


def _peak(schedule: PipeSchedule, phase: int | None = None) -> int:
    held = peak = 0
    for instructions in schedule.steps():
        for instruction in instructions:
            if phase is not None and getattr(instruction, "phase", None) != phase:
                continue
            if isinstance(instruction, ForwardPass):
                held += 1
            elif isinstance(instruction, BackwardPass):
                held -= 1
            peak = max(peak, held)
    return peak
