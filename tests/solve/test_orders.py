from __future__ import annotations

from hypothesis import given

from partitioner.solve.groups import build_groups
from partitioner.solve.orders import topological_orders
from tests.solve.oracle import problems
from tests.solve.settings import quick
from tests.solve.toys import layers


@quick
@given(problem=problems())
def test_orders_are_topological_and_different(problem):
    groups = build_groups(problem, range(len(problem.units)))
    orders = list(topological_orders(groups, [0] * len(groups)))
    assert len(set(orders)) == len(orders)
    for order in orders:
        assert sorted(order) == list(range(len(groups)))
        place = {group: index for index, group in enumerate(order)}
        assert all(place[before] < place[after] for before, after in groups.edges)


def test_equal_input_gives_equal_orders():
    groups = build_groups(layers(4, 6, stages=2), range(26))
    first, second = (
        list(topological_orders(groups, [0] * len(groups))) for _ in range(2)
    )
    assert first == second
    assert len(first) > 1
