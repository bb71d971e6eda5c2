"""Verifies an assignment against its problem, independently of how it was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partitioner.solve.recount import Counted, recount
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.solve.problem import Assignment, Problem

__all__ = ["check", "rule_faults"]


def check(problem: Problem, assignment: Assignment) -> list[str]:
    """List every rule of the problem that an assignment breaks.

    Args:
        problem: What was to be placed.
        assignment: The answer to verify.

    Returns:
        One sentence per broken rule; empty if the assignment is sound.
    """
    count = len(problem.units)
    if len(assignment.stage_of) != count or len(assignment.recomputed) != count:
        return [f"the assignment does not cover exactly {count} units"]
    if any(not 0 <= stage < problem.stages for stage in assignment.stage_of):
        return [f"a stage lies outside 0..{problem.stages - 1}"]
    found = recount(problem, assignment.stage_of, assignment.recomputed)
    return [
        *rule_faults(problem, assignment),
        *_block_faults(problem, assignment),
        *_memory_faults(problem, found),
        *_objective_faults(problem, assignment, found),
        *_score_faults(problem, assignment, found),
    ]


def rule_faults(problem: Problem, assignment: Assignment) -> list[str]:
    """List the rules on the stages alone that an assignment breaks."""
    return [
        *_order_faults(problem, assignment),
        *_pin_faults(problem, assignment),
        *_weight_faults(problem, assignment),
        *_constraint_faults(problem, assignment),
    ]


def _order_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    stage_of = assignment.stage_of
    pairs = list(problem.order_edges)
    if problem.transfer == "hops":
        pairs += [
            (v.producer, reader) for v in problem.values for reader in v.consumers
        ]
    for before, after in pairs:
        if stage_of[before] > stage_of[after]:
            yield (
                f"{problem.units[before].name} is on stage {stage_of[before]}, after"
                f" {problem.units[after].name} on stage {stage_of[after]}"
            )


def _pin_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    for unit, stage in zip(problem.units, assignment.stage_of, strict=True):
        pin = unit.pinned_stage
        if pin is not None and stage != (pin if pin >= 0 else problem.stages + pin):
            yield f"{unit.name} is pinned to stage {pin} but placed on stage {stage}"


def _weight_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    weighted = {
        stage
        for unit, stage in zip(problem.units, assignment.stage_of, strict=True)
        if unit.weighted
    }
    for stage in range(problem.stages):
        if stage not in weighted:
            yield f"stage {stage} has no parameter of its own"


def _block_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    parts: dict[tuple[int, int], set[bool]] = {}
    for unit, stage, again in zip(
        problem.units, assignment.stage_of, assignment.recomputed, strict=True
    ):
        if unit.block >= 0:
            parts.setdefault((stage, unit.block), set()).add(again)
        elif again:
            yield f"{unit.name} is recomputed but belongs to no block"
    wanted = {"none": {False}, "all": {True}, "auto": {False, True}}
    for (stage, block), found in parts.items():
        if len(found) > 1:
            yield f"block {block} is only partly recomputed on stage {stage}"
        elif not found <= wanted[problem.checkpointing]:
            yield f'block {block} breaks checkpointing="{problem.checkpointing}"'


def _constraint_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    for constraint in problem.constraints:
        held = [0] * problem.stages
        for part in constraint.parts:
            stages = {assignment.stage_of[unit] for unit in part}
            if len(stages) > 1:
                yield f"{constraint.words}: spread over stages {sorted(stages)}"
            held[min(stages)] += 1
        pin = constraint.stage % problem.stages
        if constraint.kind == "pin" and held[pin] < len(constraint.parts):
            yield f"{constraint.words}: not on stage {pin}"
        if constraint.kind == "equal" and len(set(held)) > 1:
            yield f"{constraint.words}: stages hold {held}"


def _memory_faults(problem: Problem, found: Counted) -> Iterator[str]:
    for rank, (needed, limit) in enumerate(
        zip(found.memory_bytes, problem.limits, strict=True)
    ):
        if limit is not None and needed > limit:
            yield f"rank {rank} needs {needed} bytes, the limit is {limit}"


def _objective_faults(
    problem: Problem, assignment: Assignment, found: Counted
) -> Iterator[str]:
    longest, total = problem.weights
    counted_s = longest * max(found.time_s) + total * sum(found.time_s)
    if not math.isclose(assignment.objective_s, counted_s, rel_tol=1e-9):
        yield f"objective {assignment.objective_s} s, counted {counted_s} s"
    if assignment.bound_s > assignment.objective_s:
        yield f"bound {assignment.bound_s} s above objective {assignment.objective_s} s"


def _score_faults(
    problem: Problem, assignment: Assignment, found: Counted
) -> Iterator[str]:
    rows = score(problem, assignment.stage_of, assignment.recomputed).ranks
    for rank, row in enumerate(rows):
        if row.memory_bytes != found.memory_bytes[rank]:
            yield (
                f"rank {rank} is scored {row.memory_bytes} bytes, counted"
                f" {found.memory_bytes[rank]}"
            )
        if not math.isclose(
            row.time_s, found.time_s[rank], rel_tol=1e-9, abs_tol=1e-15
        ):
            yield (
                f"rank {rank} is scored {row.time_s} s, counted {found.time_s[rank]} s"
            )
