"""Verifies an assignment against its problem, independently of how it was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partitioner.solve.score import Score, score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.solve.problem import Assignment, Problem

__all__ = ["check"]


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
    found = score(problem, assignment.stage_of, assignment.recomputed)
    return [
        *_order_faults(problem, assignment),
        *_pin_faults(problem, assignment),
        *_trainable_faults(problem, assignment),
        *_block_faults(problem, assignment),
        *_memory_faults(problem, found),
        *_objective_faults(assignment, found),
    ]


def _order_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    stage_of = assignment.stage_of
    data = ((v.producer, reader) for v in problem.values for reader in v.consumers)
    for before, after in (*data, *problem.order_edges):
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


def _trainable_faults(problem: Problem, assignment: Assignment) -> Iterator[str]:
    trained = {
        stage
        for unit, stage in zip(problem.units, assignment.stage_of, strict=True)
        if unit.trainable
    }
    for tie in problem.ties:
        if tie.trainable:
            trained.update(assignment.stage_of[unit] for unit in tie.units)
    for stage in range(problem.stages):
        if stage not in trained:
            yield f"stage {stage} has no trainable parameter"


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


def _memory_faults(problem: Problem, found: Score) -> Iterator[str]:
    limit = problem.memory_limit_bytes
    for stage, row in enumerate(found.stages):
        if limit is not None and row.memory_bytes > limit:
            yield f"stage {stage} needs {row.memory_bytes} bytes, the limit is {limit}"


def _objective_faults(assignment: Assignment, found: Score) -> Iterator[str]:
    if not math.isclose(assignment.objective_s, found.step_s, rel_tol=1e-9):
        yield f"objective {assignment.objective_s} s, scored {found.step_s} s"
    if assignment.bound_s > assignment.objective_s:
        yield f"bound {assignment.bound_s} s above objective {assignment.objective_s} s"
