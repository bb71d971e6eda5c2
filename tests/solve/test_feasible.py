from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given

from partitioner.errors import OptionError
from partitioner.solve.feasible import largest_stages, pin_windows, witness
from partitioner.solve.groups import build_groups
from tests.solve.oracle import problems, stage_assignments
from tests.solve.settings import quick, thorough
from tests.solve.toys import chain


def groups_of(problem):
    return build_groups(problem, range(len(problem.units)))


def can_be_cut(problem, stages):
    cut = dataclasses.replace(problem, stages=stages)
    for unit in problem.units:
        pin = unit.pinned_stage
        if pin is not None and not -stages <= pin < stages:
            return False
    return next(stage_assignments(cut), None) is not None


@thorough
@given(problem=problems(max_units=5))
def test_largest_equals_brute_force(problem):
    feasible = [s for s in range(1, 6) if can_be_cut(problem, s)]
    assert largest_stages(groups_of(problem)) == max(feasible, default=0)


@pytest.mark.parametrize("pins", [[0, 1, None, -1], [None, 1, 2, None], [1, 1, 3, 3]])
def test_largest_equals_brute_force_with_inner_pins(pins):
    problem = chain(pins=pins)
    feasible = [s for s in range(1, 5) if can_be_cut(problem, s)]
    assert largest_stages(groups_of(problem)) == max(feasible, default=0)


@quick
@given(problem=problems())
def test_a_witness_is_legal_and_exists_exactly_when_an_assignment_does(problem):
    groups = groups_of(problem)
    legal = set(stage_assignments(problem))
    try:
        windows = pin_windows(groups, problem.stages)
    except OptionError:
        assert not legal
        return
    found = witness(groups, windows, problem.stages)
    if found is None:
        assert not legal
    else:
        assert groups.stage_of_units(found) in legal


@quick
@given(problem=problems())
def test_pin_windows_hold_every_legal_assignment(problem):
    groups = groups_of(problem)
    try:
        first, last = pin_windows(groups, problem.stages)
    except OptionError:
        assume(False)
    for stage_of in stage_assignments(problem):
        for unit, group in enumerate(groups.group_of):
            assert first[group] <= stage_of[unit] <= last[group]


@pytest.mark.parametrize(
    ("pins", "message"),
    [([2, None, None, None], "u0 is pinned to stage 2"), ([1, 0, None, None], "u0")],
)
def test_an_impossible_pin_is_named(pins, message):
    with pytest.raises(OptionError, match=message):
        pin_windows(groups_of(chain(pins=pins)), 2)
