"""Stages whose host falls behind: several problems that know no host, one answer.

A stage takes as long as its device, or as its host if that is slower: no sum over its
units, as the searches need it. A mix of both times is one, and never more than the
slower. So whatever bounds the mixed problem bounds this one, and what solves it is
looked at with the true times.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.solve.parts import Unit
    from partitioner.solve.problem import Assignment, Problem

__all__ = ["has_host", "solve_with_host"]

SHARES = (1.0, 0.0, 0.5, 0.25, 0.75)
"""Of the device's time in a mix, the most likely to bind first."""


def has_host(problem: Problem) -> bool:
    """Whether it is said what the host needs."""
    return any(unit.host_s for unit in problem.units)


def solve_with_host(
    problem: Problem,
    search: Callable[[Problem], Assignment],
    *,
    gap: float,
    deadline: float,
) -> Assignment:
    """Return the best of the answers to several mixes, with the best of their bounds.

    The mix of devices' times alone comes first: where no host of its answer falls
    behind, that is the answer.

    Args:
        problem: With ``host_s``.
        search: Solves a problem without.
        gap: Relative distance to the bound at which to stop.
        deadline: Value of ``time.monotonic()`` after which no other mix is tried.

    Raises:
        PartitionerError: Whatever the search raises.
    """
    best: Assignment | None = None
    bound_s, proof, warnings = 0.0, "", []
    for mixed, bounds in _mixes(problem):
        if best and (_closed(best, bound_s, gap) or time.monotonic() > deadline):
            break
        found = search(mixed)
        warnings += [text for text in found.warnings if text not in warnings]
        if bounds and found.bound_s >= bound_s:
            bound_s, proof = found.bound_s, found.proof
        exact_s = score(problem, found.stage_of, found.recomputed).objective_s
        if best is None or exact_s < best.objective_s:
            best = replace(found, objective_s=exact_s)
    if best is None:  # there is always a first mix
        raise RuntimeError
    bound_s = min(bound_s, best.objective_s)
    return replace(best, bound_s=bound_s, proof=proof, warnings=tuple(warnings))


def _closed(best: Assignment, bound_s: float, gap: float) -> bool:
    return best.objective_s - bound_s <= gap * best.objective_s


def _mixes(problem: Problem) -> Iterator[tuple[Problem, bool]]:
    """Yield problems without a host, and whether what bounds them bounds the problem.

    Under DualPipeV the weights of the objective follow the units' times, so that a
    bound holds for the devices' times alone.
    """
    for share in SHARES:
        bounds = share == 1 or problem.schedule != "dualpipev"
        yield _with_times(problem, partial(_mixed, share=share)), bounds
    # No bound, for a host may catch up within a stage, but often a good answer.
    yield _with_times(problem, _slower), False


def _mixed(unit: Unit, *, share: float) -> float:
    """Return the mix of a unit's times over its device's."""
    return share + (1 - share) * unit.host_s / unit.device_s


def _slower(unit: Unit) -> float:
    return max(1.0, _mixed(unit, share=0.0))


def _with_times(problem: Problem, factor: Callable[[Unit], float]) -> Problem:
    units = []
    for unit in problem.units:
        times = factor(unit) if unit.device_s else 1.0
        units.append(
            replace(
                unit,
                forward_s=times * unit.forward_s,
                backward_s=times * unit.backward_s,
                host_s=0.0,
            )
        )
    return replace(problem, units=tuple(units))
