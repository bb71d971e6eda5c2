"""Room for CUDA graphs: what ranks hold while replayed, and answers that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partitioner.errors import InfeasibleError, MemoryLimitError
from partitioner.solve.memory_advice import sized
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.solve.problem import Assignment, Problem
    from partitioner.solve.score import Score, StageScore

__all__ = ["added_bytes", "check_room", "needed_bytes", "with_room"]

_TRIES = 4
"""Answers that are asked for, each with less memory than the last."""


def stage_replayed_bytes(stage: StageScore, in_flight: int) -> int:
    """Return the peak memory of a stage that is replayed.

    A graph's memory is its own all the time: every micro-batch in flight has what its
    passes need for a moment, not one at a time (but for what is recomputed), and all of
    it is there while the optimizer steps. What comes in and what goes out, and their
    gradients, are copied.

    Args:
        stage: What it holds else.
        in_flight: The most micro-batches between forward and backward.
    """
    moment = max(
        stage.tail_transient_bytes, stage.reserved_bytes + stage.transient_bytes
    )
    copied = 2 * stage.wire_bytes
    kept = stage.kept_bytes + in_flight * (moment + copied) + stage.recompute_peak_bytes
    return stage.static_bytes + kept + max(0, stage.step_bytes)


def needed_bytes(problem: Problem, found: Score) -> tuple[int, ...]:
    """Return the peak memory of each rank, replayed if the problem is of that.

    Args:
        problem: The problem.
        found: What an assignment holds without replays.
    """
    if problem.cuda_graphs:
        return _replayed(problem, found)
    return tuple(rank.memory_bytes for rank in found.ranks)


def _replayed(problem: Problem, found: Score) -> tuple[int, ...]:
    """Return the peak memory of each rank, all its stages replayed."""
    return tuple(
        sum(
            stage_replayed_bytes(found.stages[stage], problem.in_flight[stage])
            for stage in problem.stages_of(rank)
        )
        for rank in range(problem.ranks)
    )


def added_bytes(problem: Problem, found: Score) -> int:
    """Return the most that replays add to a rank's memory."""
    needed = _replayed(problem, found)
    return max(a - b.memory_bytes for a, b in zip(needed, found.ranks, strict=True))


def check_room(problem: Problem, answer: Assignment) -> None:
    """Check that an assignment has room for CUDA graphs.

    Raises:
        MemoryLimitError: A rank would need more than its limit.
    """
    found = score(problem, answer.stage_of, answer.recomputed)
    missing_bytes, rank = _worst(problem, found)
    if missing_bytes <= 0:
        return
    replayed_bytes = _replayed(problem, found)[rank]
    limit_bytes = replayed_bytes - missing_bytes
    planned = problem.cuda_graphs
    helps = "more stages" if planned else "plan with cuda_graphs=True, which keeps room"
    name = "stage" if problem.ranks == problem.stages else "rank"
    raise MemoryLimitError(
        f"cuda_graphs=True does not fit: {name} {rank} would need "
        f"{sized(replayed_bytes)}, as each micro-batch in flight keeps memory of "
        f"its own; the limit is {sized(limit_bytes)}",
        stage=rank,
        needed_bytes=replayed_bytes,
        limit_bytes=limit_bytes,
        hint=f"leave cuda_graphs out, use a smaller micro-batch, or {helps}",
    )


def with_room(
    problem: Problem, first: Assignment, again: Callable[[Problem], Assignment]
) -> Assignment:
    """Return an answer whose ranks have room for CUDA graphs.

    The bound is that of the problem without, which is one with it too: answers with
    less memory are found under limits that another answer need not keep.

    Args:
        problem: The problem.
        first: The best answer as if nothing were replayed.
        again: Finds it for another problem.

    Raises:
        MemoryLimitError: No answer that was found has room.
    """
    answer = first
    less_bytes = 0
    for _ in range(_TRIES):
        found = score(problem, answer.stage_of, answer.recomputed)
        missing_bytes, rank = _worst(problem, found)
        if missing_bytes <= 0:
            break
        # At least so much that this rank would not fit as it is.
        added = _replayed(problem, found)[rank] - found.ranks[rank].memory_bytes
        less_bytes = max(less_bytes + missing_bytes, added)
        try:
            answer = again(problem.with_less_memory(less_bytes))
        except InfeasibleError:
            break  # nor does what is found without so much
    check_room(problem, answer)
    bound_s = min(first.bound_s, answer.objective_s)
    warnings = tuple(dict.fromkeys(first.warnings + answer.warnings))
    return replace(answer, bound_s=bound_s, proof=first.proof, warnings=warnings)


def _worst(problem: Problem, found: Score) -> tuple[int, int]:
    """Return how much the rank lacks that lacks most (below zero: has left), and it.

    Without limits: nothing.
    """
    rows = [
        (needed - limit, -rank)
        for rank, (needed, limit) in enumerate(
            zip(_replayed(problem, found), problem.limits, strict=True)
        )
        if limit is not None
    ]
    missing_bytes, rank = max(rows, default=(0, 0))
    return missing_bytes, -rank
