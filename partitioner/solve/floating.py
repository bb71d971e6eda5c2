"""Leaves out what may run anywhere early: a relaxation with far fewer possible cuts.

A table of position biases, or a weight that is reshaped, is made of weights alone and
read by one late layer. Each such chain multiplies the number of possible cuts, for
next to no work. Without them every assignment of the rest is cheaper or equal, so the
best of the rest bounds the whole; put back beside their readers, they make a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve.contract import contract, contract_dear
from partitioner.solve.feasible import require_stages
from partitioner.solve.ideals import Exact, solve_by_ideals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve.problem import Constraint, Problem

MOST_WORK = 0.05
"""Share of all work above which leaving it out would prove too little."""

__all__ = ["floating_units", "solve_without_floating"]


def floating_units(problem: Problem) -> list[bool]:
    """Return which units read only weights, or what such units make.

    Units that are pinned, tied or ordered by more than data stay; so do units that
    nobody reads.
    """
    tied = {unit for tie in problem.ties for unit in tie.units}
    ordered = {unit for pair in problem.order_edges for unit in pair}
    read = {value.producer for value in problem.values}
    floats = [
        unit.pinned_stage is None
        and index in read
        and index not in tied
        and index not in ordered
        for index, unit in enumerate(problem.units)
    ]
    for value in sorted(problem.values, key=lambda value: value.producer):
        if not floats[value.producer]:  # units are in a topological order
            for reader in value.consumers:
                floats[reader] = False
    return floats


def solve_without_floating(
    problem: Problem, target_s: float, deadline: float
) -> Exact | None:
    """As `solve_by_ideals`, of the problem without its floating units.

    Returns:
        A bound on the whole problem, and the best of the rest with the floating units
        put beside their readers; None if nothing floats or too many cuts remain.
    """
    if problem.limited or problem.transfer == "ends":
        return None
    floats = floating_units(problem)
    if not 0 < _share(problem, floats) <= MOST_WORK:
        return None
    rest = _rest(problem, floats)
    try:
        groups = contract(require_stages(rest.problem)[0])
    except (InfeasibleError, OptionError):
        return None
    found = solve_by_ideals(contract_dear(groups, target_s), target_s, deadline)
    if found is None:
        return None
    rule = f"{found.rule}, without {sum(floats)} units that may run anywhere early"
    stage_of = None
    if found.stage_of is not None:
        stage_of = _put_back(problem, rest, found.stage_of)
    return Exact(stage_of=stage_of, bound_s=found.bound_s, rule=rule)


def _share(problem: Problem, floats: Sequence[bool]) -> float:
    """Return the share of all work that floating units do."""
    work_s = [unit.forward_s + unit.backward_s for unit in problem.units]
    floating_s = sum(spent for spent, f in zip(work_s, floats, strict=True) if f)
    return floating_s / sum(work_s) if floating_s else 0.0


@dataclass(frozen=True, slots=True)
class _Rest:
    problem: Problem
    index_of: dict[int, int]
    """New number of each unit that is left."""


def _rest(problem: Problem, floats: Sequence[bool]) -> _Rest:
    left = [unit for unit, floating in enumerate(floats) if not floating]
    index_of = {unit: index for index, unit in enumerate(left)}
    values = []
    for value in problem.values:
        readers = tuple(index_of[u] for u in value.consumers if u in index_of)
        if value.producer in index_of and readers:
            producer = index_of[value.producer]
            values.append(replace(value, producer=producer, consumers=readers))
    # What floats may train for its readers' stage: any stage may count as trained.
    trains = any(problem.units[u].trainable for u, f in enumerate(floats) if f)
    return _Rest(
        replace(
            problem,
            units=tuple(
                replace(
                    problem.units[unit],
                    trainable=trains or problem.units[unit].trainable,
                )
                for unit in left
            ),
            values=tuple(values),
            order_edges=tuple(
                (index_of[a], index_of[b]) for a, b in problem.order_edges
            ),
            ties=tuple(
                replace(tie, units=tuple(index_of[unit] for unit in tie.units))
                for tie in problem.ties
            ),
            constraints=tuple(
                _kept(constraint, index_of)
                for constraint in problem.constraints
                if constraint.kind == "together"
            ),
        ),
        index_of,
    )


def _kept(constraint: Constraint, index_of: dict[int, int]) -> Constraint:
    parts = (
        tuple(index_of[u] for u in part if u in index_of) for part in constraint.parts
    )
    return replace(constraint, parts=tuple(part for part in parts if part))


def _put_back(
    problem: Problem, rest: _Rest, stage_of_rest: Sequence[int]
) -> tuple[int, ...]:
    """Place each floating unit on the stage of its first reader."""
    last = problem.stages - 1
    stage_of = [
        stage_of_rest[rest.index_of[unit]] if unit in rest.index_of else last
        for unit in range(len(problem.units))
    ]
    ranked = sorted(problem.values, key=lambda value: value.producer, reverse=True)
    for value in ranked:
        if value.producer not in rest.index_of:
            first = min(stage_of[reader] for reader in value.consumers)
            stage_of[value.producer] = min(stage_of[value.producer], first)
    return tuple(stage_of)
