"""Names the fewest constraints that cannot hold together."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import TYPE_CHECKING

from partitioner.errors import ConflictError, InfeasibleError, OptionError
from partitioner.solve.narrow import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.solve.ask import Settings
    from partitioner.solve.problem import Problem

__all__ = ["conflict_error"]

MOST_TRIED = 60
"""Sets of one or two constraints that are tried; larger sets are found by deletion."""
TRIAL_S = 5.0
"""Seconds to find a plan under some of the constraints."""
MEMORY = "the memory limit"


def conflict_error(problem: Problem, settings: Settings) -> ConflictError | None:
    """Return the error that names what conflicts, if constraints are to blame.

    Args:
        problem: Of which no plan was found.
        settings: Of the search.

    Returns:
        The error; None if there is no plan without the constraints, either.
    """

    def possible(kept: Sequence[str]) -> bool:
        return _has_plan(_with(problem, kept), settings)

    names = [constraint.words for constraint in problem.constraints]
    memory = [MEMORY] if problem.limited else []
    if not possible(memory):
        return None
    fewest = _fewest([*names, *memory], possible)
    listed = "; ".join(fewest)
    return ConflictError(
        f"no plan obeys these together: {listed}",
        constraints=tuple(fewest),
        hint=_hint(problem, fewest),
    )


def _hint(problem: Problem, fewest: Sequence[str]) -> str:
    needs = {c.words for c in problem.constraints if not c.wished}
    if needs.issuperset(fewest):
        return "Use fewer stages, or change the model there."
    if needs.intersection(fewest):
        return "Each that is not the model's own can be dropped."
    if len(fewest) > 1:
        return "Each of them can be dropped to make a plan possible."
    return "It cannot be met with this model and number of stages: drop it."


def _with(problem: Problem, kept: Sequence[str]) -> Problem:
    """Return the problem with some of its constraints only."""
    wanted = tuple(c for c in problem.constraints if c.words in kept)
    fewer = dataclasses.replace(problem, constraints=wanted)
    return fewer if MEMORY in kept else fewer.without_limits()


def _has_plan(problem: Problem, settings: Settings) -> bool:
    deadline = time.monotonic() + TRIAL_S
    loose = dataclasses.replace(settings, gap=0.99, deadline=deadline)
    try:
        Search(problem=problem, settings=loose).run()
    except (InfeasibleError, OptionError):
        return False
    return True


def _fewest(names: list[str], possible: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return a smallest conflicting set of up to two, else one without a smaller part.

    Deletion filter: Chinneck and Dravnieks, ORSA Journal on Computing 3, 1991.
    """
    for few in itertools.islice(_small_sets(names), MOST_TRIED):
        if not possible(few):
            return few
    kept = list(names)
    for name in names:
        fewer = [other for other in kept if other != name]
        if not possible(fewer):
            kept = fewer
    return kept


def _small_sets(names: list[str]) -> Iterator[list[str]]:
    yield from ([name] for name in names)
    yield from (list(pair) for pair in itertools.combinations(names, 2))
