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

from partitioner.errors import InfeasibleError
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partitioner.solve.parts import Unit
    from partitioner.solve.problem import Assignment, Problem

__all__ = ["may_wait", "solve_with_host"]

SHARES = (0.0, 0.5, 0.25, 0.75)
"""Of the device's time in a mix."""
FIRST_SHARE = 0.3
"""Share of the time left for devices alone: it says most of the bound."""
OTHER_SHARE = 0.5
"""Share of the time left for each of the others."""
_ROUNDING = 1e-9


def may_wait(problem: Problem) -> bool:
    """Whether there is a unit that the host starts more slowly than it runs."""
    return any(unit.host_s > unit.device_s > 0 for unit in problem.units)


def solve_with_host(
    problem: Problem,
    search: Callable[[Problem, float], Assignment],
    *,
    gap: float,
    deadline: float,
) -> Assignment:
    """Return the best of the answers to several mixes, with the best of their bounds.

    Devices alone come first: where no host of that answer falls behind, it is the
    answer.

    Args:
        problem: With ``host_s``.
        search: Solves a problem without, until a value of ``time.monotonic()``.
        gap: Relative distance to the bound at which to stop.
        deadline: That value for all of them together.

    Raises:
        PartitionerError: Whatever the search raises for devices alone.
    """
    devices = _with_times(problem, _device_alone)
    for until in (_part(deadline, FIRST_SHARE), deadline):
        found = search(devices, until)
        best = _rated(problem, found)
        late = best.objective_s > found.objective_s * (1 + _ROUNDING)
        if late or found.gap <= gap:
            break
    if not late:
        return best
    for mixed, bounds in _mixes(problem):
        left_s = best.objective_s - best.bound_s
        if left_s <= gap * best.objective_s or time.monotonic() > deadline:
            break
        try:
            found = search(mixed, _part(deadline, OTHER_SHARE))
        except InfeasibleError:
            continue  # there are plans, as is known, but it has not found one
        best = _joined(best, _rated(problem, found), bounds=bounds)
    return best


def _part(deadline: float, share: float) -> float:
    """Return when a share of the time that is left is over."""
    now = time.monotonic()
    return now + share * max(0.0, deadline - now)


def _rated(problem: Problem, found: Assignment) -> Assignment:
    """Return the answer to a mix with its true objective."""
    exact_s = score(problem, found.stage_of, found.recomputed).objective_s
    return replace(found, objective_s=exact_s, bound_s=min(found.bound_s, exact_s))


def _joined(best: Assignment, found: Assignment, *, bounds: bool) -> Assignment:
    """Return the better of two answers with the better of their bounds."""
    better = found if found.objective_s < best.objective_s else best
    surer = found if bounds and found.bound_s > best.bound_s else best
    return replace(
        better,
        bound_s=min(surer.bound_s, better.objective_s),
        proof=surer.proof,
        warnings=tuple(dict.fromkeys((*best.warnings, *found.warnings))),
    )


def _mixes(problem: Problem) -> Iterator[tuple[Problem, bool]]:
    """Yield problems without a host, and whether what bounds them bounds the problem.

    Under DualPipeV none does: the weights of the objective follow the units' times.
    """
    # No bound, for a host may catch up within a stage, but most often a good answer.
    yield _with_times(problem, _slower), False
    for share in SHARES:
        mixed = _with_times(problem, partial(_mixed, share=share))
        yield mixed, problem.schedule != "dualpipev"


def _device_alone(_unit: Unit) -> float:
    return 1.0


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
