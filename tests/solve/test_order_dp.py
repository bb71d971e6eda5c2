from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.solve.order_dp import least_bottleneck, least_weighted
from partitioner.solve.orders import topological_orders
from partitioner.solve.recompute import recompute_costs
from tests.solve.oracle import best_objective_s, problems
from tests.solve.settings import quick
from tests.solve.test_intervals import pinned_groups, whole_table


@quick
@given(problem=problems(), data=st.data())
def test_slicing_an_order_equals_brute_force_over_that_order(problem, data):
    groups = pinned_groups(problem)
    orders = list(topological_orders(groups, [0] * len(groups)))
    order = data.draw(st.sampled_from(orders))
    table = whole_table(groups, order)
    choose = problem.checkpointing == "auto"
    costs = recompute_costs(table) if choose else table.stage_costs()
    found = least_weighted(costs, problem.weights)
    units = tuple(unit for group in order for unit in groups.members[group])
    best_s = best_objective_s(problem, units)
    assert (math.inf if found is None else found.value) == pytest.approx(best_s)


matrices = st.lists(
    st.lists(st.integers(0, 9), min_size=36, max_size=36), min_size=1, max_size=3
)


def slicings(costs):
    last = len(costs[0]) - 1
    for inner in itertools.combinations(range(1, last), len(costs) - 1):
        cuts = (0, *inner, last)
        yield [c[a, b] for c, a, b in zip(costs, cuts, cuts[1:], strict=False)]


@quick
@given(rows=matrices, micro_batches=st.integers(1, 9))
def test_arbitrary_costs_equal_brute_force(rows, micro_batches):
    upper = np.triu(np.ones((6, 6), dtype=bool), k=1)
    costs = [
        np.where(upper, np.array(row, dtype=float).reshape(6, 6), math.inf)
        for row in rows
    ]
    spent = list(slicings(costs))
    step = least_weighted(costs, (micro_batches - 1.0, 1.0))
    assert step is not None
    assert step.value == min(sum(t) + (micro_batches - 1) * max(t) for t in spent)
    longest = least_bottleneck(costs)
    assert longest is not None
    assert longest.value == min(max(t) for t in spent)


def test_nothing_above_the_cutoff_is_returned():
    costs = [np.array([[math.inf, 3.0], [math.inf, math.inf]])]
    assert least_weighted(costs, (0.0, 1.0), cutoff=3.0) is None
    assert least_weighted(costs, (0.0, 1.0), cutoff=3.1) is not None


def test_no_legal_interval_gives_nothing():
    costs = [np.full((3, 3), math.inf)] * 2
    assert least_weighted(costs, (3.0, 1.0)) is None
    assert least_bottleneck(costs) is None
