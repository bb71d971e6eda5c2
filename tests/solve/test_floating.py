from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from partitioner.solve import Unit, Value, check, narrow, solve
from partitioner.solve import floating as module
from partitioner.solve.floating import floating_units, solve_without_floating
from partitioner.solve.ideals import solve_by_ideals
from tests.solve.oracle import best_objective_s, problems, unlimited
from tests.solve.settings import quick
from tests.solve.toys import chain


@quick
@given(problem=problems(max_units=6, varied=True))
def test_the_rest_bounds_the_whole(problem):
    problem = unlimited(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_WORK", 1.0)
        found = solve_without_floating(problem, 1e9, math.inf)
    if found is not None and found.stage_of is not None:
        assert found.bound_s <= best_objective_s(problem) * (1 + 1e-9)
        for value in problem.values:
            for reader in value.consumers:
                assert found.stage_of[value.producer] <= found.stage_of[reader]


def biased(count):
    """Return a chain in which every unit reads a table made of weights alone."""
    plain = chain((4.0, 1.0, 3.0, 2.0, 5.0, 1.0), stages=3, pins=[0] + [None] * 5)
    table = Unit(
        name="table",
        forward_s=0.01,
        backward_s=0.01,
        saved_bytes=0,
        static_bytes=0,
        trainable=True,
    )
    units = (table,) * count + plain.units
    shifted = [
        Value(
            producer=value.producer + count,
            consumers=tuple(reader + count for reader in value.consumers),
            hop_s=0.1,
            wire_bytes=0,
        )
        for value in plain.values
    ]
    read = [
        Value(producer=i, consumers=(count + 1 + i,), hop_s=0.1, wire_bytes=0)
        for i in range(count)
    ]
    return dataclasses.replace(plain, units=units, values=(*read, *shifted))


def test_units_made_of_weights_alone_float():
    problem = biased(3)
    assert floating_units(problem) == [True] * 3 + [False] * 6


def test_a_plan_and_its_bound_come_from_the_rest(monkeypatch):
    problem = biased(5)
    calls = []

    def counted(*args):
        calls.append(1)
        return solve_by_ideals(*args)

    monkeypatch.setattr(narrow, "solve_by_ideals", lambda *_: None)
    monkeypatch.setattr(module, "solve_by_ideals", counted)
    found = solve(problem, gap=0.02)
    assert calls or "work" in found.proof
    assert found.gap <= 0.02
    assert check(problem, found) == []
