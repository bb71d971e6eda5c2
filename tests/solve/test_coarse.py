from __future__ import annotations

import dataclasses
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.solve import Assignment, Unit, Value, coarse, cores, score, solve
from partitioner.solve.check import rule_faults
from partitioner.solve.coarse import solve_by_cores
from partitioner.solve.contract import contract
from partitioner.solve.feasible import require_stages
from partitioner.solve.recompute import forced
from tests.solve.oracle import best_objective_s, problems, unlimited
from tests.solve.settings import quick
from tests.solve.toys import chain, layers


def groups_of(problem):
    return contract(require_stages(problem)[0])


def blank(problem, stage_of):
    return Assignment(
        stage_of=stage_of,
        recomputed=forced(problem),
        objective_s=0.0,
        bound_s=0.0,
        proof="",
        solver="",
        solve_s=0.0,
    )


@quick
@given(
    problem=problems(max_units=6, varied=True),
    share=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    dearer=st.sampled_from([0.002, 0.5, 1.0]),
)
def test_cores_bound_every_assignment(problem, share, dearer):
    problem = unlimited(problem)
    best_s = best_objective_s(problem)
    if math.isinf(best_s):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "ALLOWANCES", (share,))
        patch.setattr(cores, "DEARER_SHARE", dearer)
        found = solve_by_cores(
            groups_of(problem), best_s * 1.5 + 1.0, 0.0, time.monotonic() + 60
        )
    if found is None:
        return
    assert found.bound_s <= best_s * (1 + 1e-9)
    if found.stage_of is not None and not problem.constraints:
        plan = blank(problem, found.stage_of)
        assert rule_faults(problem, plan) == []
        objective_s = score(problem, plan.stage_of, plan.recomputed).objective_s
        assert objective_s >= best_s * (1 - 1e-9)


@quick
@given(problem=problems(max_units=6, limited=False, rich=False))
def test_without_satellites_the_bound_is_the_optimum(problem):
    problem = unlimited(problem)
    best_s = best_objective_s(problem)
    if math.isinf(best_s):
        return
    groups = groups_of(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "ALLOWANCES", (-math.inf,))
        found = solve_by_cores(groups, best_s * 1.5 + 1.0, 0.0, time.monotonic() + 60)
    if found is not None:
        assert found.bound_s == pytest.approx(best_s, rel=1e-3)


def with_side_branches(count, hop_s):
    """Return a chain whose units each read a unit that reads only the first one."""
    plain = chain([4.0, 1.0, 3.0, 2.0] * 3, stages=3, hops=[0.1] * 11)
    side = Unit(
        name="side",
        forward_s=0.1,
        backward_s=0.2,
        saved_bytes=0,
        static_bytes=0,
        trainable=True,
    )
    first = dataclasses.replace(plain.values[0], consumers=(1, *range(12, 12 + count)))
    moved = [1 + count + i for i in range(11)]  # the chain comes after the branches
    number = [0, *moved, *range(1, 1 + count)]
    read = [
        Value(producer=12 + i, consumers=(1 + i,), hop_s=hop_s, wire_bytes=0)
        for i in range(count)
    ]
    values = [
        dataclasses.replace(
            value,
            producer=number[value.producer],
            consumers=tuple(sorted(number[reader] for reader in value.consumers)),
        )
        for value in (first, *plain.values[1:], *read)
    ]
    units = (plain.units[0], *[side] * count, *plain.units[1:])
    return dataclasses.replace(plain, units=units, values=tuple(values))


@pytest.mark.parametrize("hop_s", [0.1, 0.25, 1.0])
def test_branches_that_multiply_the_cuts_are_proven(hop_s, monkeypatch):
    problem = with_side_branches(10, hop_s)
    exact = solve(problem, solver="cbc", gap=0.0, time_limit_s=120)
    assert exact.gap <= 1e-5
    monkeypatch.setattr(coarse, "MOST_CUTS", 60)
    found = solve_by_cores(
        groups_of(problem), exact.objective_s * 1.1, 0.001, time.monotonic() + 60
    )
    assert found is not None
    assert found.bound_s <= exact.objective_s * (1 + 1e-9)
    assert found.bound_s >= exact.objective_s * 0.97
    assert found.stage_of is not None


def test_layers_are_solved_to_the_gap_without_a_program(monkeypatch):
    def fail(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr("partitioner.solve.narrow.ask_program", fail)
    found = solve(layers(40, 9, stages=12), gap=0.01)
    assert found.gap <= 0.01


def test_a_deadline_in_the_past_proves_nothing():
    problem = with_side_branches(10, 0.25)
    groups = groups_of(problem)
    assert solve_by_cores(groups, 1e3, 0.01, time.monotonic() - 1) is None
