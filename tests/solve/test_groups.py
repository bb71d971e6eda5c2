from __future__ import annotations

import dataclasses

from hypothesis import given

from partitioner.solve import Value
from partitioner.solve.groups import build_groups, unit_edges
from tests.solve.oracle import problems
from tests.solve.settings import quick
from tests.solve.toys import chain


def test_a_cycle_of_order_edges_becomes_one_group():
    problem = chain(order_edges=((2, 1),))
    groups = build_groups(problem, range(4))
    assert groups.members == ((0,), (1, 2), (3,))


def test_equal_labels_take_along_what_lies_between():
    groups = build_groups(chain(), [0, 1, 2, 0])
    assert groups.members == ((0, 1, 2, 3),)


def test_values_with_the_same_readers_are_added_up():
    value = Value(producer=0, consumers=(1,), hop_s=0.5, wire_bytes=3)
    problem = dataclasses.replace(chain(), values=(value, value))
    (merged,) = build_groups(problem, range(4)).values
    assert (merged.hop_s, merged.wire_bytes) == (1.0, 6)


@quick
@given(problem=problems())
def test_groups_are_numbered_topologically_and_lose_no_work(problem):
    groups = build_groups(problem, range(len(problem.units)))
    for before, after in unit_edges(problem):
        assert groups.group_of[before] <= groups.group_of[after]
    again = problem.checkpointing == "all"
    assert groups.work_s.sum() == sum(
        unit.forward_s + unit.backward_s + again * (unit.block >= 0) * unit.forward_s
        for unit in problem.units
    )
