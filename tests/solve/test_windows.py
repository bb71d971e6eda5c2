from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from partitioner.solve import score
from partitioner.solve.groups import condensed
from partitioner.solve.recompute import forced
from partitioner.solve.windows import reach
from tests.solve.oracle import problems, stage_assignments
from tests.solve.settings import quick
from tests.solve.toys import chain, layers


def groups_of(problem):
    return condensed(problem)


@quick
@given(problem=problems(varied=True))
def test_no_assignment_that_meets_the_limit_is_excluded(problem):
    groups = groups_of(problem)
    found = reach(groups)
    bound_s = found.least_longest_s()
    for stage_of in stage_assignments(problem):
        rows = score(problem, stage_of, forced(problem)).ranks
        longest_s = max(row.time_s for row in rows)
        assert bound_s <= longest_s * (1 + 1e-6)
        windows = found.windows(longest_s)
        for unit, group in enumerate(groups.group_of):
            assert windows.earliest[group] <= stage_of[unit] <= windows.latest[group]


def test_reach_adds_up_ancestors_and_descendants_once():
    problem = layers(3, 5, stages=2)
    groups = groups_of(problem)
    found = reach(groups)
    before = [{group} for group in range(len(groups))]
    for source, target in groups.edges:
        before[target] |= before[source]
    sums = [sum(groups.work_s[list(ancestors)]) for ancestors in before]
    assert found.before_s == pytest.approx(np.array(sums))
    assert found.after_s[0] == pytest.approx(
        sum(groups.work_s[g] for g in range(len(groups)) if 0 in before[g])
    )


def test_a_limit_below_the_work_leaves_an_empty_window():
    found = reach(groups_of(chain((1.0, 1.0, 1.0, 1.0), stages=2)))
    assert not found.windows(2.0).empty
    assert found.windows(1.9).empty
    assert found.least_longest_s() == pytest.approx(2.0, rel=1e-5)


def test_windows_prove_more_than_the_average():
    found = reach(groups_of(chain((1.0, 3.0, 3.0, 1.0), stages=3)))
    # Below 3.5, the first seven of work fill two stages and leave the last none.
    assert found.least_longest_s() == pytest.approx(3.5, rel=1e-5)
