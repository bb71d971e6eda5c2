"""What stages hold beyond the plan when they are replayed as CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import MemoryLimitError
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from partitioner.plan.training import TrainablePlan
    from partitioner.solve import StageScore

__all__ = ["check_replayed", "replayed_bytes"]


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


def check_replayed(plan: TrainablePlan) -> None:
    """Check that a plan has room for CUDA graphs.

    Raises:
        MemoryLimitError: A stage would need more than its limit.
    """
    problem = plan.problem
    for stage in plan.stages:
        needed_bytes = replayed_bytes(stage.score, problem.in_flight[stage.index])
        limit_bytes = problem.limits[problem.rank_of(stage.index)]
        if limit_bytes is not None and needed_bytes > limit_bytes:
            rest_bytes = limit_bytes - (needed_bytes - stage.memory_bytes)
            smaller = f", or plan with memory_limit={rest_bytes}"
            raise MemoryLimitError(
                f"cuda_graphs=True does not fit: stage {stage.index} would need "
                f"{format_bytes(needed_bytes)}, as each micro-batch in flight keeps "
                f"memory of its own; the limit is {format_bytes(limit_bytes)}",
                stage=stage.index,
                needed_bytes=needed_bytes,
                limit_bytes=limit_bytes,
                hint="leave cuda_graphs out, or use a smaller micro-batch"
                + (smaller if rest_bytes > 0 else ""),
            )
