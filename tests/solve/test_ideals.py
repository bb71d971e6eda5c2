from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve import score
from partitioner.solve.contract import contract
from partitioner.solve.feasible import require_stages
from partitioner.solve.groups import condensed
from partitioner.solve.ideals import list_ideals, solve_by_ideals
from partitioner.solve.recompute import forced
from tests.solve.oracle import best_objective_s, problems, stage_assignments, unlimited
from tests.solve.settings import quick
from tests.solve.toys import chain, layers


@quick
@given(problem=problems(varied=True))
def test_the_ideals_are_the_sets_that_hold_all_that_must_come_before(problem):
    groups = condensed(problem)
    held = list_ideals(groups, 1000)
    assert held is not None
    found = [frozenset(row.nonzero()[0].tolist()) for row in held]
    subsets = (
        frozenset(subset)
        for size in range(len(groups) + 1)
        for subset in itertools.combinations(range(len(groups)), size)
    )
    closed = {s for s in subsets if all(a in s for a, b in groups.edges if b in s)}
    assert len(found) == len(closed)
    assert set(found) == closed


@quick
@given(problem=problems(varied=True))
def test_looking_at_every_cut_equals_brute_force(problem):
    require_optimum(problem)


@quick
@given(problem=problems(max_units=5, far=True))
def test_far_boundaries_are_looked_at_as_such(problem):
    require_optimum(problem)


def require_optimum(problem):
    """Let the dynamic program over all cuts find what brute force does."""
    problem = unlimited(problem)
    try:
        groups = contract(require_stages(problem)[0])
    except (InfeasibleError, OptionError):
        return
    if problem.schedule == "dualpipev":
        assert solve_by_ideals(groups, math.inf, math.inf) is None
        return
    best_s = best_objective_s(problem)
    for target_s in (1e9, best_s * 1.001):
        found = solve_by_ideals(groups, target_s, math.inf)
        assert found is not None
        if math.isinf(best_s):
            assert found.stage_of is None
            continue
        if found.stage_of is None:  # nothing is below a target of zero
            assert target_s == best_s == 0.0
            continue
        assert found.stage_of in set(stage_assignments(problem))
        reached = score(problem, found.stage_of, forced(problem)).objective_s
        assert reached == pytest.approx(best_s)
        assert found.bound_s == pytest.approx(best_s)
    if math.isfinite(best_s):
        below = solve_by_ideals(groups, best_s * 0.999, math.inf)
        assert below is not None
        assert below.stage_of is None


def test_a_bound_that_the_clock_cut_short_stays_below_the_optimum():
    problem = layers(6, 7, stages=3)
    groups = contract(require_stages(problem)[0])
    whole = solve_by_ideals(groups, math.inf, math.inf)
    cut = solve_by_ideals(groups, math.inf, -math.inf)
    assert whole is not None
    assert cut is not None
    assert cut.bound_s <= whole.bound_s


def test_too_many_ideals_are_not_listed():
    groups = condensed(chain((1.0,) * 9))
    assert list_ideals(groups, 9) is None
    held = list_ideals(groups, 10)
    assert held is not None
    assert held.sum(axis=1).tolist() == list(range(10))
