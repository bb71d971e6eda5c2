from __future__ import annotations

import dataclasses
import math

from hypothesis import given

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve import check, score, solve
from partitioner.solve.candidates import Laid, candidate_of, slice_orders
from partitioner.solve.contract import contract
from partitioner.solve.feasible import require_stages
from tests.solve.oracle import best_objective_s, problems, unlimited
from tests.solve.settings import quick
from tests.solve.toys import chain, layers


def laid_out(problem):
    return Laid(contract(require_stages(problem)[0]))


@quick
@given(problem=problems(varied=True))
def test_without_a_limit_some_slicing_is_found_whenever_one_exists(problem):
    problem = unlimited(problem)
    best_s = best_objective_s(problem)
    try:
        found = slice_orders(laid_out(problem), choose=False, deadline=math.inf)
    except (InfeasibleError, OptionError):
        found = None
    if found is None:
        assert math.isinf(best_s)
    else:
        assert found.objective_s >= best_s * (1 - 1e-12)


def test_choosing_on_coarse_tables_moves_the_cuts_afterwards():
    problem = layers(40, 12, stages=4)
    plain = solve(problem)
    rows = score(problem, plain.stage_of, plain.recomputed).stages
    tight = dataclasses.replace(
        problem, memory_limit_bytes=int(0.7 * max(r.memory_bytes for r in rows))
    )
    laid = laid_out(tight)
    found = slice_orders(laid, choose=True, deadline=math.inf)
    assert found is not None
    assert any(found.recomputed)
    everything = dataclasses.replace(tight, checkpointing="all")
    full = slice_orders(laid_out(everything), choose=False, deadline=math.inf)
    assert full is not None
    assert plain.objective_s < found.objective_s < full.objective_s


def test_an_assignment_that_cannot_fit_is_no_candidate():
    problem = chain(static=[10] * 4, memory_limit_bytes=25)
    assert candidate_of(problem, (0, 0, 0, 1), "order-dp") is None
    assert candidate_of(problem, (0, 0, 1, 1), "order-dp") is not None


def test_assignments_found_are_sound():
    problem = layers(10, 7, stages=3)
    assert check(problem, solve(problem)) == []
