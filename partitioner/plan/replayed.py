"""What stages hold when they are replayed as CUDA graphs, and plans with room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from partitioner.errors import InfeasibleError, MemoryLimitError
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.plan.plan import Plan
    from partitioner.plan.stages import StagePlan
    from partitioner.plan.training import TrainablePlan
    from partitioner.solve import StageScore

__all__ = ["added_bytes", "check_replayed", "replayed_bytes", "with_room"]

_Plan = TypeVar("_Plan", bound="Plan")

_TRIES = 4
"""Plans that are asked for, each with less memory than the last."""


def replayed_bytes(score: StageScore, in_flight: int) -> int:
    """Return the peak memory of a stage that is replayed.

    A graph's memory is its own all the time: every micro-batch in flight has what its
    passes need for a moment, not one at a time (but for what is recomputed), and all of
    it is there while the optimizer steps. What comes in and what goes out, and their
    gradients, are copied.

    Args:
        score: What the stage holds else.
        in_flight: The most micro-batches between forward and backward.
    """
    moment = max(
        score.tail_transient_bytes, score.reserved_bytes + score.transient_bytes
    )
    copied = 2 * score.wire_bytes
    kept = score.kept_bytes + in_flight * (moment + copied) + score.recompute_peak_bytes
    return score.static_bytes + kept + max(0, score.step_bytes)


def added_bytes(plan: TrainablePlan) -> int:
    """Return the most that replays add to a stage's memory."""
    return max(_needed_bytes(plan, s) - s.memory_bytes for s in plan.stages)


def with_room(plan: _Plan, again: Callable[[int], _Plan]) -> _Plan:
    """Return a plan whose stages have room for CUDA graphs.

    Args:
        plan: The best plan without.
        again: Plans anew, with so many bytes less on every device.

    Raises:
        MemoryLimitError: None of the plans has.
    """
    less_bytes = 0
    for _ in range(_TRIES):
        missing_bytes, stage = _worst(plan)
        if missing_bytes <= 0:
            return plan
        # At least so much that this stage would not fit as it is.
        added = _needed_bytes(plan, stage) - stage.memory_bytes
        less_bytes = max(less_bytes + missing_bytes, added)
        try:
            plan = again(less_bytes)
        except InfeasibleError:
            break  # nor does what is found without so much
    check_replayed(plan)
    return plan


def check_replayed(plan: TrainablePlan) -> None:
    """Check that a plan has room for CUDA graphs.

    Raises:
        MemoryLimitError: A stage would need more than its limit.
    """
    missing_bytes, stage = _worst(plan)
    if missing_bytes <= 0:
        return
    needed_bytes = _needed_bytes(plan, stage)
    limit_bytes = needed_bytes - missing_bytes
    planned = plan.options.cuda_graphs
    helps = "more stages" if planned else "plan with cuda_graphs=True, which keeps room"
    raise MemoryLimitError(
        f"cuda_graphs=True does not fit: stage {stage.index} would need "
        f"{format_bytes(needed_bytes)}, as each micro-batch in flight keeps memory of "
        f"its own; the limit is {format_bytes(limit_bytes)}",
        stage=stage.index,
        needed_bytes=needed_bytes,
        limit_bytes=limit_bytes,
        hint=f"leave cuda_graphs out, use a smaller micro-batch, or {helps}",
    )


def _worst(plan: TrainablePlan) -> tuple[int, StagePlan]:
    """Return how much the stage lacks that lacks most (below zero: has left), and it.

    Without limits: nothing.
    """
    # The device's limits: those of the problem may have been lowered to make room.
    devices = plan.options.devices
    shared = plan.options.memory_limit_bytes
    limits = replace(plan.problem, memory_limit_bytes=shared, devices=devices).limits
    rows = [
        (_needed_bytes(plan, stage) - limit, -stage.index)
        for stage in plan.stages
        if (limit := limits[plan.problem.rank_of(stage.index)]) is not None
    ]
    missing_bytes, index = max(rows, default=(0, 0))
    return missing_bytes, plan.stages[-index]


def _needed_bytes(plan: TrainablePlan, stage: StagePlan) -> int:
    return replayed_bytes(stage.score, plan.problem.in_flight[stage.index])
