"""Searches stages × replicas × micro-batches for the devices at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve.choose import solve
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.solve.problem import Assignment, Problem

__all__ = ["Link", "Tried", "all_reduce_s", "search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one device sends its messages over, in one direction."""

    bytes_per_s: float
    latency_s: float = 0.0
    """Seconds before the first byte of a message arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One way to use the devices, and what came of it."""

    stages: int
    replicas: int
    micro_batches: int
    """Of each replica, in one step."""
    problem: Problem | None
    assignment: Assignment | None
    """None if there is no plan: ``reason`` says why."""
    all_reduce_s: float
    reason: str = ""

    @property
    def step_s(self) -> float:
        """Step time with the sum of the gradients; infinite without a plan."""
        if self.problem is None or self.assignment is None:
            return float("inf")
        found = self.assignment
        return (
            score(self.problem, found.stage_of, found.recomputed).step_s
            + self.all_reduce_s
        )


def search(
    state: Callable[[int, int, int], Problem],
    *,
    devices: int,
    micro_batches: int,
    link: Link,
    stages: Sequence[int] | None = None,
    solver: str = "cbc",
    gap: float = 0.01,
    time_limit_s: float = 60.0,
) -> list[Tried]:
    """Try every way to use equal devices as replicas of one pipeline.

    DeepSpeed's grid is uniform: replicas times stages is the number of devices, and
    every replica runs the same plan on its share of the micro-batches.

    Args:
        state: States the problem for (stages, micro-batches of a replica, replicas);
            replicas may share optimizer states.
        devices: How many there are.
        micro_batches: Of one step, over all replicas.
        link: Between replicas.
        stages: Numbers of stages to try; None: all divisors of ``devices``.
        solver: As for `solve`.
        gap: As for `solve`.
        time_limit_s: For each way.

    Returns:
        All ways, the shortest step first; those without a plan last, with the reason.

    Raises:
        OptionError: An argument is out of range.
    """
    if devices < 1 or micro_batches < 1 or not link.bytes_per_s > 0:
        raise OptionError(
            f"devices={devices}, micro_batches={micro_batches},"
            f" link.bytes_per_s={link.bytes_per_s}: all must be above 0",
            hint="Change the argument that is named.",
        )
    asked = stages if stages is not None else range(1, devices + 1)
    options = {"solver": solver, "gap": gap, "time_limit_s": time_limit_s}
    tried = [
        _try(
            partial(state, count),
            (count, devices // count),
            micro_batches,
            link,
            options,
        )
        for count in asked
        if devices % count == 0
    ]
    return sorted(tried, key=lambda way: way.step_s)


def _try(
    state: Callable[[int, int], Problem],
    grid: tuple[int, int],
    micro_batches: int,
    link: Link,
    options: dict[str, Any],
) -> Tried:
    """Solve for one grid of (stages, replicas)."""
    stages, replicas = grid
    share = micro_batches // replicas
    problem, assignment, spent_s, reason = None, None, 0.0, ""
    if micro_batches % replicas:
        reason = f"{micro_batches} micro-batches cannot be shared by {replicas}"
    else:
        try:
            problem = state(share, replicas)
            assignment = solve(problem, **options)
            spent_s = all_reduce_s(problem, assignment.stage_of, replicas, link)
        except (InfeasibleError, OptionError) as error:
            reason = error.message
    return Tried(
        stages=stages,
        replicas=replicas,
        micro_batches=share,
        problem=problem,
        assignment=assignment,
        all_reduce_s=spent_s,
        reason=reason,
    )


def all_reduce_s(
    problem: Problem, stage_of: Sequence[int], replicas: int, link: Link
) -> float:
    """Return the time in which replicas sum the gradients of the largest rank.

    A ring of R passes ``2 (R - 1) / R`` of the bytes in ``2 (R - 1)`` messages
    (Patarasuk and Yuan, J. Parallel and Distributed Computing 69, 2009). DeepSpeed's
    schedule sums at the end of a step (``ReduceGrads``), all ranks at once, so the
    largest one counts in full.

    Args:
        problem: What was placed.
        stage_of: Stage of each unit.
        replicas: R.
        link: Between replicas.
    """
    if replicas == 1:
        return 0.0
    held = [0] * problem.ranks
    for unit, stage in zip(problem.units, stage_of, strict=True):
        held[problem.rank_of(stage)] += unit.gradient_bytes
    for tie in problem.ties:
        for rank in {problem.rank_of(stage_of[unit]) for unit in tie.units}:
            held[rank] += tie.gradient_bytes
    passes = 2 * (replicas - 1)
    moved = passes / replicas * max(held)
    return moved / link.bytes_per_s + passes * link.latency_s
