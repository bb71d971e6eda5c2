from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given

from partitioner.solve import recompute as module
from partitioner.solve import score
from partitioner.solve.recompute import recompute_costs, recomputed_units
from tests.solve.oracle import fits, problems, recomputations, stage_assignments
from tests.solve.settings import quick, thorough
from tests.solve.test_intervals import pinned_groups, whole_table
from tests.solve.toys import chain


@quick
@given(problem=problems(limited=True, varied=True))
def test_the_least_recomputation_that_fits_is_chosen(problem):
    for stage_of in list(stage_assignments(problem))[:4]:
        allowed = [
            score(problem, stage_of, recomputed).objective_s
            for recomputed in recomputations(problem, stage_of)
            if fits(problem, stage_of, recomputed)
        ]
        found = recomputed_units(problem, stage_of)
        if found is None:
            assert not allowed
        else:
            assert fits(problem, stage_of, found)
            assert score(problem, stage_of, found).objective_s == pytest.approx(
                min(allowed)
            )


@thorough
@given(problem=problems(limited=True, checkpointing="auto"))
def test_greedy_tables_never_promise_less_than_exact_ones(problem):
    groups = pinned_groups(problem)
    table = whole_table(groups, tuple(range(len(groups))))
    exact = recompute_costs(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EXACT_CELLS", 0)
        greedy = recompute_costs(table)
    for tight, loose in zip(exact, greedy, strict=True):
        assert (loose >= tight - 1e-9).all()
        assert (np.isfinite(loose) <= np.isfinite(tight)).all()


def test_what_a_backward_holds_anyway_makes_room_for_a_block():
    problem = chain((1.0, 1.0), stages=1, saved=[16, 8], blocks=[0, -1], in_flight=(2,))
    units = [dataclasses.replace(unit, transient_bytes=12) for unit in problem.units]
    problem = dataclasses.replace(problem, units=tuple(units), memory_limit_bytes=32)
    # 60 bytes if all is kept; 16 kept and 16 brought back, more than 12, if not.
    assert recomputed_units(problem, (0, 0)) == (True, False)
    groups = pinned_groups(problem)
    table = whole_table(groups, tuple(range(len(groups))))
    assert recompute_costs(table)[0][0, 2] == 2.5


def test_nothing_is_recomputed_for_an_optimizer_that_cannot_step():
    problem = chain((1.0, 1.0), stages=1, saved=[16, 16], memory_limit_bytes=40)
    units = [dataclasses.replace(unit, step_bytes=25) for unit in problem.units]
    problem = dataclasses.replace(problem, units=tuple(units))
    assert recomputed_units(problem, (0, 0)) is None
    groups = pinned_groups(problem)
    table = whole_table(groups, tuple(range(len(groups))))
    assert np.isinf(recompute_costs(table)[0][0, 2])
