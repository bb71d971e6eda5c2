"""Writes and runs the integer program, and says what its answer proves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.solve.backends import run_solver
from partitioner.solve.bounds import longest_below
from partitioner.solve.program import Program
from partitioner.solve.windows import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.solve.backends import Outcome
    from partitioner.solve.groups import Groups
    from partitioner.solve.reads import BlockRead

__all__ = ["TOLERANCE", "Answer", "Settings", "ask_program"]

TOLERANCE = 1e-6
"""Relative rounding of the solvers: a gap of zero is proven up to this."""
MOST_BINARIES = 12_000
"""Programs with more binary variables are not written: they would not end in time."""
MOST_BINARIES_CHOOSING = 1_500
"""The same where recomputation is chosen: above it, only the relaxation is solved."""
BINARIES_PER_S = 250
"""Fewer are allowed when little time is left: writing the program takes time, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to search, and for how long."""

    solver: str
    gap: float
    deadline: float
    """Value of ``time.monotonic()`` at which to stop."""
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the program said."""

    stage_of: tuple[int, ...] | None = None
    """Stage of each unit in its solution."""
    infeasible: bool = False
    """Whether it was proven to have none."""
    bound_s: float = -math.inf
    """Lower bound on the objectives below the target."""
    rule: str = ""
    warning: str = ""


def ask_program(
    groups: Groups,
    reads: Sequence[BlockRead],
    target_s: float | None,
    limit_s: float,
    settings: Settings,
) -> Answer:
    """Ask for the best assignment below a target.

    Args:
        groups: What is to be placed.
        reads: What activation-checkpoint blocks read.
        target_s: Objective that is to be beaten; None: any assignment will do.
        limit_s: Seconds for writing and solving.
        settings: Solver and gap.
    """
    started, solver = time.monotonic(), settings.solver
    longest_s = math.inf if target_s is None else longest_below(groups, target_s)
    windows = reach(groups).windows(longest_s)
    size = int((windows.latest - windows.earliest).sum())
    if size > min(MOST_BINARIES, BINARIES_PER_S * limit_s):
        reason = f"the program is too large ({size} binary variables)"
        return Answer(warning=f"{solver}: not asked, {reason}")
    program = Program(groups, windows, reads, target_s=target_s, longest_s=longest_s)
    choosing = groups.problem.limited and groups.problem.checkpointing == "auto"
    relax = choosing and size > MOST_BINARIES_CHOOSING
    outcome = run_solver(
        program.model,
        solver=solver,
        gap=settings.gap / 2,
        time_limit_s=limit_s - (time.monotonic() - started),
        relax=relax,
    )
    above_s = math.inf if target_s is None else target_s
    bound_s, rule = _proven(program, outcome, settings, relax=relax)
    stage_of = None
    if outcome.values and not relax:
        stage_of = groups.stage_of_units(program.stage_of_groups(outcome.values))
    return Answer(
        stage_of=stage_of,
        infeasible=outcome.status == "infeasible",
        bound_s=min(bound_s, above_s),
        rule=rule,
        warning=_warning(outcome, solver, relaxed=size if relax else 0),
    )


def _proven(
    program: Program, outcome: Outcome, settings: Settings, *, relax: bool
) -> tuple[float, str]:
    """Return a bound on what the program allows, and what proved it."""
    if outcome.status == "failed":
        return -math.inf, ""
    if outcome.status == "infeasible":
        return math.inf, f"integer program without solution ({settings.solver})"
    bound_s = outcome.bound * program.scale_s
    rule = f"relaxation of the integer program ({settings.solver})"
    if outcome.status == "optimal":
        bound_s = program.objective_s(outcome.values)
        if not relax:
            rule = f"integer program solved ({settings.solver})"
            bound_s *= 1 - settings.gap / 2
    return bound_s * (1 - TOLERANCE), rule


def _warning(outcome: Outcome, solver: str, *, relaxed: int) -> str:
    if outcome.status in ("failed", "stopped"):
        return f"{solver}: {outcome.reason}"
    if relaxed and outcome.values:
        return (
            f"{solver}: only the relaxation was solved, as {relaxed} binary variables"
            " are too many where recomputation is chosen"
        )
    return ""
