from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from partitioner.solve import recompute as module
from partitioner.solve import score
from partitioner.solve.recompute import recompute_costs, recomputed_units
from tests.solve.oracle import fits, problems, recomputations, stage_assignments
from tests.solve.settings import quick, thorough
from tests.solve.test_intervals import pinned_groups, whole_table


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
