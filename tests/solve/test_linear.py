from __future__ import annotations

import pulp
import pytest

from partitioner.solve.backends import run_solver
from partitioner.solve.linear import Rows, is_zero, weighted


def test_weighted_adds_numbers_variables_and_expressions():
    x, y = pulp.LpVariable("x"), pulp.LpVariable("y")
    total = weighted([(3, 2.0), (x, 1.0), (2 * x + y - 1, 2.0)])
    assert dict(total.items()) == {x: 5.0, y: 2.0}
    assert total.constant == 4.0


def test_only_the_number_zero_is_zero():
    assert is_zero(0)
    assert not is_zero(pulp.LpAffineExpression())
    assert not is_zero(1)


@pytest.mark.parametrize(("limit", "status"), [(2.0, "optimal"), (0.5, "infeasible")])
def test_a_row_of_numbers_is_true_or_has_no_solution(limit, status):
    model = pulp.LpProblem("m", pulp.LpMinimize)
    rows = Rows(model)
    x = pulp.LpVariable("x", 0, 1)
    model.setObjective(weighted([(x, 1.0)]))
    rows.add([(x, 1.0)], ">=", 0.25)
    rows.add([(1, 1.0)], "<=", limit)
    outcome = run_solver(model, solver="cbc", gap=0.0, time_limit_s=20.0)
    assert outcome.status == status
