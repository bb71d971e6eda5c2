"""Problem → Assignment: checks the question, searches, and checks the answer."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from partitioner.errors import InfeasibleError, OptionError, PartitionerError
from partitioner.solve.ask import Settings
from partitioner.solve.backends import require_solver
from partitioner.solve.check import check
from partitioner.solve.conflicts import conflict_error
from partitioner.solve.host import may_wait, solve_with_host
from partitioner.solve.narrow import Search
from partitioner.solve.problem import Assignment
from partitioner.solve.room import with_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.solve.problem import Problem

__all__ = ["solve"]


def solve(
    problem: Problem,
    *,
    solver: str = "cbc",
    gap: float = 0.01,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Assignment:
    """Assign every unit to a stage, and choose what to recompute.

    Args:
        problem: Units, values, stages and limits.
        solver: "cbc" (comes with PuLP) or "highs" (needs highspy).
        gap: Relative distance to the bound at which the search may stop, 0 to 1.
        time_limit_s: Wall-clock seconds; the best assignment so far is returned.
        progress: Called with a sentence at each step.

    Returns:
        The best assignment found, with a bound on all others and what proved it.

    Raises:
        OptionError: An argument is out of range, or a pin is impossible.
        TooManyStagesError: There are more stages than the model can be cut into.
        MemoryLimitError: No plan that was found fits the memory limit.
        ConflictError: Some constraints cannot hold together (says which).
    """
    started = time.monotonic()
    _require_options(problem, gap, time_limit_s)
    require_solver(solver)
    settings = Settings(
        solver=solver,
        gap=gap,
        deadline=started + time_limit_s,
        tell=progress or (lambda _: None),
    )
    try:
        assignment = _answer(problem, settings)
    except (InfeasibleError, OptionError) as error:
        conflict = problem.constraints and conflict_error(problem, settings)
        if conflict:
            raise conflict from error
        raise
    if problem.cuda_graphs:
        again = partial(_answer, settings=settings)
        assignment = with_room(problem, assignment, again)
    assignment = replace(assignment, solve_s=time.monotonic() - started)
    faults = check(problem, assignment)
    if faults:
        raise PartitionerError(
            "the solver's own answer broke its rules: " + "; ".join(faults),
            hint="This is a fault of the partitioner: please report it.",
        )
    return assignment


def _answer(problem: Problem, settings: Settings) -> Assignment:
    if not may_wait(problem):
        return _search(problem, settings.deadline, settings=settings)
    search = partial(_search, settings=settings)
    return solve_with_host(
        problem, search, gap=settings.gap, deadline=settings.deadline
    )


def _search(problem: Problem, deadline: float, *, settings: Settings) -> Assignment:
    search = Search(problem=problem, settings=replace(settings, deadline=deadline))
    started = time.monotonic()
    best = search.run()
    return Assignment(
        stage_of=best.stage_of,
        recomputed=best.recomputed,
        objective_s=best.objective_s,
        bound_s=min(search.bound_s, best.objective_s),
        proof=search.proof,
        solver=best.source,
        solve_s=time.monotonic() - started,
        warnings=tuple(search.warnings),
    )


def _require_options(problem: Problem, gap: float, time_limit_s: float) -> None:
    for wrong, message in _faults(problem, gap, time_limit_s):
        if wrong:
            raise OptionError(message, hint="Change the argument that is named.")


def _faults(
    problem: Problem, gap: float, time_limit_s: float
) -> Iterator[tuple[bool, str]]:
    stages, devices = problem.stages, problem.devices
    paired = problem.schedule == "dualpipev"
    yield stages < 1, f"stages={stages} is below 1"
    yield paired and stages % 2 == 1, f"stages={stages} is odd: a rank holds two"
    yield (
        paired and problem.transfer == "ends",
        'transfer="ends" needs ranks of one stage each',
    )
    yield (
        problem.transfer == "ends" and problem.checkpointing != "none",
        'transfer="ends" goes with checkpointing="none" alone',
    )
    yield (
        problem.transfer == "ends" and any(problem.far),
        'transfer="ends" has no boundaries that values cross: far must be empty',
    )
    far = len(problem.far)
    yield far not in (0, stages - 1), f"far has {far} entries, not {stages - 1}"
    micro_batches = problem.micro_batches
    yield micro_batches < 1, f"micro_batches={micro_batches} is below 1"
    yield not 0 <= gap < 1, f"gap={gap} is not in [0, 1)"
    yield not time_limit_s > 0, f"time_limit_s={time_limit_s} is not above 0"
    held = len(problem.in_flight)
    yield held != stages, f"in_flight has {held} entries, not {stages}"
    yield not problem.units, "the problem has no units"
    yield (
        bool(devices) and len(devices) != problem.ranks,
        f"devices has {len(devices)} entries, not {problem.ranks}",
    )
    for rank, device in enumerate(devices):
        yield not device.speed > 0, f"devices[{rank}] has speed {device.speed}"
