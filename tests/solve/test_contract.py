from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve import score
from partitioner.solve.contract import contract, contract_dear
from partitioner.solve.feasible import require_stages
from partitioner.solve.groups import build_groups, condensed
from tests.solve.oracle import (
    best_objective_s,
    fits,
    problems,
    recomputations,
    stage_assignments,
)
from tests.solve.settings import quick, thorough
from tests.solve.toys import chain


def step_times(problem, groups=None):
    """Yield every legal assignment that keeps groups together, with its step time."""
    for stage_of in stage_assignments(problem):
        if groups is None or all(
            len({stage_of[unit] for unit in members}) == 1 for members in groups.members
        ):
            for recomputed in recomputations(problem, stage_of):
                if fits(problem, stage_of, recomputed):
                    yield stage_of, score(problem, stage_of, recomputed).objective_s


@quick
@given(problem=problems(varied=True))
def test_contraction_keeps_a_best_assignment(problem):
    best_s = best_objective_s(problem)
    try:
        groups = contract(require_stages(problem)[0])
    except (InfeasibleError, OptionError):
        assert math.isinf(best_s)
        return
    kept_s = min(
        (step_s for _, step_s in step_times(problem, groups)), default=math.inf
    )
    assert kept_s == pytest.approx(best_s, rel=1e-12)


@thorough
@given(problem=problems(max_units=6, varied=True))
def test_dear_values_are_kept_whole_by_every_assignment_below_the_target(problem):
    groups = condensed(problem)
    steps = sorted({step_s for _, step_s in step_times(problem)})
    for target_s in steps[:: max(1, len(steps) // 3)]:
        dear = contract_dear(groups, target_s)
        for stage_of, step_s in step_times(problem):
            if step_s <= target_s:
                for members in dear.members:
                    assert len({stage_of[unit] for unit in members}) == 1


def test_units_that_cost_nothing_join_a_neighbour():
    problem = chain(
        (1.0, 0.0, 0.0, 1.0),
        hops=[0.5, 0.5, 0.5],
        trainable=[True, False, False, True],
        blocks=[-1] * 4,
    )
    assert len(contract(require_stages(problem)[0])) == 2


def test_a_unit_that_makes_the_cut_cheaper_stays_apart():
    problem = chain(
        (1.0, 0.0, 1.0),
        hops=[0.5, 0.1],
        trainable=[True, False, True],
        blocks=[-1] * 3,
    )
    groups = contract(require_stages(problem)[0])
    assert groups.members == ((0, 1), (2,))
    dearer = chain(
        (1.0, 0.0, 1.0),
        hops=[0.1, 0.5],
        trainable=[True, False, True],
        blocks=[-1] * 3,
    )
    assert contract(require_stages(dearer)[0]).members == ((0,), (1, 2))


def test_dear_values_merge_only_below_a_target_that_forbids_them():
    problem = chain((1.0, 1.0, 1.0, 1.0), hops=[9.0, 0.0, 9.0])
    groups = build_groups(problem, range(4))
    assert len(contract_dear(groups, target_s=100.0)) == 4
    assert contract_dear(groups, target_s=10.0).members == ((0, 1), (2, 3))


def with_far_hops(problem, far_hops):
    values = [
        dataclasses.replace(value, far_hop_s=far_s)
        for value, far_s in zip(problem.values, far_hops, strict=True)
    ]
    return dataclasses.replace(problem, values=tuple(values))


def test_a_unit_joins_where_no_boundary_gets_dearer_near_or_far():
    near = with_far_hops(
        chain(
            (1.0, 0.0, 1.0),
            hops=[0.1, 0.5],
            trainable=[True, False, True],
            blocks=[-1] * 3,
        ),
        [5.0, 2.0],
    )
    assert contract(require_stages(near)[0]).members == ((0,), (1, 2))
    far = dataclasses.replace(near, far=(True,))
    assert len(contract(require_stages(far)[0])) == 3


def test_a_value_that_is_dear_on_far_boundaries_alone_may_be_cut_elsewhere():
    problem = with_far_hops(
        chain((1.0,) * 4, hops=[0.5] * 3, stages=3, far=(False, True)), [99.0] * 3
    )
    assert len(contract_dear(build_groups(problem, range(4)), target_s=30.0)) == 4


def test_one_stage_is_one_group():
    assert len(contract(require_stages(chain(stages=1))[0])) == 1


def test_a_value_inside_a_group_no_longer_counts():
    problem = chain(
        (1.0, 0.0, 0.0, 1.0),
        hops=[1.0, 3.0, 0.5],
        trainable=[True, False, False, True],
    )
    groups = contract(require_stages(problem)[0])
    assert groups.members == ((0, 1, 2), (3,))
