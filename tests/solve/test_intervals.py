from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partitioner.errors import OptionError
from partitioner.solve import score
from partitioner.solve.feasible import pin_windows
from partitioner.solve.groups import build_groups, condensed
from partitioner.solve.intervals import Intervals
from partitioner.solve.orders import topological_orders
from partitioner.solve.positions import choose_bounds
from partitioner.solve.reads import block_reads
from partitioner.solve.recompute import forced
from partitioner.solve.refine import refined
from tests.solve.oracle import problems, stage_assignments
from tests.solve.settings import quick
from tests.solve.toys import layers


def pinned_groups(problem):
    """Return one group per unit (cycles aside), with the windows of the pins."""
    groups = condensed(problem)
    try:
        first, last = pin_windows(groups, problem.stages)
    except OptionError:
        assume(False)
    spread = (
        [first[group] for group in groups.group_of],
        [last[group] for group in groups.group_of],
    )
    return build_groups(problem, groups.group_of, windows=spread)


def whole_table(groups, order):
    return Intervals(groups, order, np.arange(len(order) + 1), block_reads(groups))


@quick
@given(problem=problems(max_units=6, varied=True), data=st.data())
def test_every_interval_costs_what_score_says(problem, data):
    groups = pinned_groups(problem)
    orders = list(topological_orders(groups, [0] * len(groups)))
    table = whole_table(groups, data.draw(st.sampled_from(orders)))
    inner = st.lists(
        st.integers(0, len(table)),
        min_size=problem.stages - 1,
        max_size=problem.stages - 1,
    )
    cuts = (0, *sorted(data.draw(inner)), len(table))
    stage_of = groups.stage_of_units(table.stage_of_groups(cuts))
    rows = score(problem, stage_of, forced(problem)).stages
    allowed = True
    for stage, row in enumerate(rows):
        i, j = cuts[stage], cuts[stage + 1]
        allowed = allowed and i < j and bool(table.allowed(stage)[i, j])
        if i < j:
            memory = table.memory_bytes(problem.in_flight[stage])[i, j]
            assert table.time_s(stage)[i, j] == pytest.approx(row.time_s, abs=1e-9)
            if problem.schedule == "dualpipev":  # one copy of a tie for two stages
                assert memory >= row.memory_bytes
            else:
                assert memory == row.memory_bytes
    assert allowed == (stage_of in set(stage_assignments(problem)))


def test_few_bounds_keep_both_ends_and_the_cheapest_cuts():
    problem = layers(20, 9, stages=4)
    groups = build_groups(problem, range(len(problem.units)))
    order = tuple(range(len(groups)))
    bounds = choose_bounds(groups, order, 20)
    assert (bounds[0], bounds[-1]) == (0, len(order))
    assert len(bounds) <= 22
    table = Intervals(groups, order, bounds, [])
    every = Intervals(groups, order, np.arange(len(order) + 1), [])
    assert table.cut_s[0, 1:-1].max() <= np.median(every.cut_s[0, 1:-1])


def test_refined_bounds_surround_the_cuts():
    problem = layers(20, 9, stages=4)
    groups = build_groups(problem, range(len(problem.units)))
    order = tuple(range(len(groups)))
    coarse = Intervals(groups, order, choose_bounds(groups, order, 10), [])
    cuts = (0, 3, 5, 8, len(coarse))
    fine, pairs = refined(coarse, cuts, 60)
    kept = set(fine.bounds.tolist())
    assert {int(coarse.bounds[cut]) for cut in cuts} <= kept
    assert len(kept) > len(coarse)
    assert pairs.any()
    assert not np.tril(pairs).any()
