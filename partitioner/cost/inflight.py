"""Micro-batches each stage holds at its peak, read from DeepSpeed's own schedule."""

from __future__ import annotations

from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass, TrainSchedule

__all__ = ["in_flight"]


def in_flight(stages: int, micro_batches: int) -> tuple[int, ...]:
    """Return the peak number of micro-batches whose activations each stage holds.

    Interprets the very instructions the engine runs: a forward pass adds one set of
    saved activations, a backward pass frees one. Under 1F1B (Narayanan et al.,
    PipeDream-Flush, ICML 2021) that is ``min(stages - s, micro_batches)``.

    Args:
        stages: Number of pipeline stages.
        micro_batches: Micro-batches of one step.

    Returns:
        One count per stage.
    """
    return tuple(
        _peak(TrainSchedule(micro_batches, stages, stage)) for stage in range(stages)
    )


def _peak(schedule: TrainSchedule) -> int:
    held = peak = 0
    for instructions in schedule.steps():
        for instruction in instructions:
            if isinstance(instruction, ForwardPass):
                held += 1
            elif isinstance(instruction, BackwardPass):
                held -= 1
            peak = max(peak, held)
    return peak
