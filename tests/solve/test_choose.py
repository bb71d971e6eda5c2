from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings

from partitioner.errors import (
    InfeasibleError,
    MemoryLimitError,
    OptionError,
    TooManyStagesError,
)
from partitioner.solve import check, score, solve
from tests.solve.oracle import best_step_s, fits, problems, stage_assignments, unlimited

few = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def answer(problem, **options):
    """Solve, or return None for what the user is told is impossible."""
    try:
        return solve(problem, **options)
    except (InfeasibleError, OptionError):
        return None


@few
@given(problem=problems())
def test_gap_zero_equals_brute_force(problem):
    best_s = best_step_s(problem)
    found = answer(problem, gap=0.0, time_limit_s=30.0)
    if math.isinf(best_s):
        assert found is None
        return
    assert found is not None
    assert check(problem, found) == []
    assert found.warnings == ()
    assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-9)
    assert found.bound_s <= best_s * (1 + 1e-9)


@few
@given(problem=problems())
def test_bound_and_objective_enclose_the_optimum_at_any_gap(problem):
    best_s = best_step_s(problem)
    found = answer(problem, gap=0.2)
    if found is not None:
        assert found.bound_s <= best_s * (1 + 1e-9)
        assert best_s <= found.objective_s * (1 + 1e-9)
        assert found.gap <= 0.2 + 1e-6
    else:
        assert math.isinf(best_s)
