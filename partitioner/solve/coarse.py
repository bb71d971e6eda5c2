"""Bounds a problem by the cuts between its cores, and finds a plan among them.

Where the possible cuts are too many to list, small groups are merged into neighbours
until they are not. Cutting only between what was merged gives plans; charging each
stage no more than any assignment with the same cores on it must spend gives a bound.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.bounds import longest_below
from partitioner.solve.chains import Chains, Cuts
from partitioner.solve.contract import contract_dear
from partitioner.solve.cores import below_each, cored, fastest
from partitioner.solve.ideals import SLACK, Exact, cut_seconds, list_ideals

if TYPE_CHECKING:
    from partitioner.solve.chains import Found
    from partitioner.solve.cores import Cored, Flags
    from partitioner.solve.groups import Groups

__all__ = ["solve_by_cores"]

MOST_CUTS = 12_000
"""Possible cuts between cores that are listed at most."""
ALLOWANCES = (
    *(0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0063, 0.008, 0.01, 0.0125),
    *(0.016, 0.02, 0.03, 0.05, 0.1, 0.2),
)
"""Work of satellites, as shares of an even stage, tried from the finest."""
CLOSE_SHARE = 0.125
"""Share of the gap within which the best chain is found."""


def solve_by_cores(
    groups: Groups, target_s: float, gap: float, deadline: float
) -> Exact | None:
    """Bound the assignments below a target, and find one if the cores allow it.

    Args:
        groups: What is to be placed.
        target_s: Objective that is to be beaten.
        gap: Relative distance between bound and plan that is small enough.
        deadline: Value of ``time.monotonic()`` at which to stop, with a weaker bound.

    Returns:
        A bound, and the stages of a plan that may break the rule for equal stages; None
        where memory limits the stages, ranks hold two, or there are too many cuts.
    """
    problem = groups.problem
    shared = problem.transfer == "ends" or problem.ranks < problem.stages
    if problem.limited or shared:
        return None
    found = _listed(contract_dear(groups, target_s), deadline)
    if found is None:
        return None
    plain, least = _sides(*found)
    longest_s = longest_below(groups, target_s)

    def best_of(cuts: Cuts) -> Found | None:
        chains = Chains(cuts, longest_s, deadline)
        close = gap * CLOSE_SHARE
        if not chains.complete:
            return None
        return chains.best(problem.weights, cutoff=target_s, close=close)

    best = best_of(least)
    if best is None:
        return None
    stage_of = None
    plan = best_of(plain)
    if plan is not None and plan.chain is not None:
        inside = plain.held[list(plan.chain[1:])]
        stage_of = found[0].coarse.stage_of_units(inside.argmax(axis=0).tolist())
    count, cores = plain.held.shape
    return Exact(
        stage_of=stage_of,
        bound_s=best.bound_s * (1 - SLACK),
        rule=f"dynamic program over {count} possible cuts between {cores} cores",
    )


def _listed(groups: Groups, deadline: float) -> tuple[Cored, Flags] | None:
    """Return the finest cores whose possible cuts can be listed."""
    even_s = float(groups.work_s.sum()) / groups.problem.stages
    below = below_each(groups)
    for share in ALLOWANCES:
        if time.monotonic() > deadline:
            return None
        grouped = cored(groups, share * even_s, below)
        held = list_ideals(grouped.coarse, MOST_CUTS)
        if held is not None:
            return grouped, held
    return None


def _sides(grouped: Cored, held: Flags) -> tuple[Cuts, Cuts]:
    """Return the cuts as plans pay for them, and as any assignment does at least."""
    fine, coarse = grouped.fine, grouped.coarse
    speed = fastest(coarse.problem)
    work_s = held @ coarse.work_s / speed
    ranked = np.lexsort((held.sum(axis=1), work_s))
    held, work_s = held[ranked], work_s[ranked]
    cut_s = cut_seconds(coarse, held)
    total_s = float(coarse.work_s.sum()) / speed
    sure_s, open_s = grouped.spent_s(held, total_s / coarse.problem.stages)
    cores = list(grouped.core_of)
    boundaries = range(coarse.problem.stages + 1)
    row_of = tuple(int(coarse.problem.is_far(boundary)) for boundary in boundaries)
    weighted = held.astype(np.int64) @ np.array(coarse.weighted, dtype=np.int64)
    plain = Cuts(
        held=held,
        starts_s=work_s - cut_s,
        ends_s=work_s + cut_s,
        cut_s=cut_s,
        row_of=row_of,
        total_s=total_s,
        earliest=coarse.earliest,
        latest=coarse.latest,
        weighted=weighted,
        weightless_s=math.inf,
    )
    least_cut_s = cut_s - grouped.dearer_s  # below zero, too: work moved in return
    least = Cuts(
        held=held,
        starts_s=sure_s + open_s - least_cut_s,
        ends_s=sure_s + least_cut_s,
        cut_s=least_cut_s,
        row_of=row_of,
        total_s=total_s,
        earliest=fine.earliest[cores],
        latest=fine.latest[cores],
        weighted=weighted,
        weightless_s=grouped.parted_s,
    )
    return plain, least
