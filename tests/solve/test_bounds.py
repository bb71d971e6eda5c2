from __future__ import annotations

import pytest
from hypothesis import given

from partitioner.solve import Device, score
from partitioner.solve.bounds import least_objective, longest_below
from partitioner.solve.groups import condensed
from partitioner.solve.recompute import forced
from partitioner.solve.windows import reach
from tests.solve.oracle import problems, stage_assignments
from tests.solve.settings import quick
from tests.solve.toys import chain


@quick
@given(problem=problems(varied=True))
def test_no_assignment_is_below_the_bound(problem):
    groups = condensed(problem)
    bound_s = least_objective(groups, reach(groups).least_longest_s())
    for stage_of in stage_assignments(problem):
        found = score(problem, stage_of, forced(problem))
        assert bound_s <= found.objective_s * (1 + 1e-6) + 1e-12
        longest_s = max(rank.time_s for rank in found.ranks)
        assert longest_s <= longest_below(groups, found.objective_s) + 1e-9


def test_unequal_devices_share_the_work_by_speed():
    problem = chain(
        (1.0,) * 6,
        stages=2,
        micro_batches=3,
        devices=(Device(speed=2.0), Device(speed=1.0)),
    )
    groups = condensed(problem)
    # Six units of work: four at double speed and two take 2 s each.
    assert least_objective(groups, 2.0) == pytest.approx(2 * 2.0 + 4.0)
