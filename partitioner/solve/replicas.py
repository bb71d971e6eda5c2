"""What replicas of a pipeline pay for training one model: sums over their links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.solve.problem import Problem

__all__ = ["Link", "replica_sums_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one device sends its messages over, in one direction."""

    bytes_per_s: float
    latency_s: float = 0.0
    """Seconds before the first byte of a message arrives."""


def replica_sums_s(
    problem: Problem,
    stage_of: Sequence[int],
    links: Sequence[Link],
    *,
    replicas: int,
    zero_stage: int,
) -> float:
    """Return what a step takes longer because replicas train side by side.

    A ring of R passes ``2 (R - 1) / R`` of the gradients' bytes in ``2 (R - 1)``
    messages (Patarasuk and Yuan, J. Parallel and Distributed Computing 69, 2009).
    DeepSpeed's schedule sums at the end of a step (``ReduceGrads``), all ranks at once,
    so the slowest one counts in full. Under ZeRO-1 each replica then gathers the
    weights that the others have updated, half as many messages more: DeepSpeed sums
    whole buckets there too (``use_multi_rank_bucket_allreduce``).

    Args:
        problem: What was placed.
        stage_of: Stage of each unit.
        links: Between the replicas of each rank.
        replicas: R.
        zero_stage: 0 or 1.
    """
    if replicas == 1:
        return 0.0
    messages = (3 if zero_stage else 2) * (replicas - 1)
    return max(
        messages * (held / replicas / link.bytes_per_s + link.latency_s)
        for held, link in zip(_gradient_bytes(problem, stage_of), links, strict=True)
    )


def _gradient_bytes(problem: Problem, stage_of: Sequence[int]) -> Iterator[int]:
    """Yield what each rank has to sum; a tied weight counts wherever it is held."""
    held = [0] * problem.ranks
    for unit, stage in zip(problem.units, stage_of, strict=True):
        held[problem.rank_of(stage)] += unit.gradient_bytes
    for tie in problem.ties:
        for rank in {problem.rank_of(stage_of[unit]) for unit in tie.units}:
            held[rank] += tie.gradient_bytes
    yield from held
