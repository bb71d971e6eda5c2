"""Tests of partitioner.report.html.flow: rows, cuts and lanes of hand-made boxes."""

from __future__ import annotations

from typing import Any

import pytest

from partitioner.report.html.flow import Cut, arranged, edges_of


def item(stages: list[list[int]], *flows: tuple[int, int]) -> dict[str, Any]:
    """A box with children on these stages; -1 is the outside."""
    return {
        "children": [{"stages": found} for found in stages],
        "flows": [{"from": start, "to": end, "bytes": 4} for start, end in flows],
    }


def test_a_chain_is_a_column_with_a_cut_where_the_stage_changes():
    chain = item([[0], [0], [1], [2]], (0, 1), (1, 2), (2, 3))
    rows = arranged(chain)
    assert rows == [[0], [1], Cut(before=0), [2], Cut(before=1), [3]]
    edges, lanes = edges_of(chain, rows)
    assert [edge[:3] for edge in edges] == [[0, 1, 0], [1, 2, 0], [2, 3, 0]]
    assert lanes == 0


def test_what_depends_on_the_same_stands_side_by_side():
    fan = item([[0]] * 4, (-1, 0), (0, 1), (0, 2), (1, 3), (2, 3), (3, -1))
    rows = arranged(fan)
    assert rows == [[0], [1, 2], [3]]
    assert edges_of(fan, rows)[1] == 0


def test_a_stage_is_never_beside_the_one_before_it():
    """The third box depends on nothing, but its stage comes second."""
    assert arranged(item([[0], [0], [1]], (0, 1))) == [[0], [1], Cut(before=0), [2]]


def test_no_cut_is_drawn_through_a_box_that_two_stages_share():
    assert arranged(item([[0], [0, 1], [1]], (0, 1), (1, 2))) == [[0], [1], [2]]
    rows = arranged(item([[0], [0, 1], [2]], (0, 1), (1, 2)))
    assert rows == [[0], [1], Cut(before=1), [2]]


def test_an_input_stands_with_the_stage_that_reads_it_first():
    late = item([[], [0], [1], [2]], (1, 2), (0, 2), (0, 3), (2, 3))
    assert arranged(late) == [[1], Cut(before=0), [0], [2], Cut(before=1), [3]]


def test_what_passes_rows_has_a_lane_and_shares_it_when_it_is_free():
    residual = item(
        [[0]] * 5,
        *[(-1, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, -1)],
        *[(-1, 2), (2, 4)],
    )
    edges, lanes = edges_of(residual, arranged(residual))
    assert lanes == 1
    assert {tuple(edge[:3]) for edge in edges} >= {(-1, 2, 1), (2, 4, 1)}


@pytest.mark.parametrize(("skips", "lanes"), [(3, 3), (8, 6)])
def test_nested_skips_have_lanes_of_their_own_up_to_six(skips: int, lanes: int):
    count = 2 * skips + 2
    chain = [(place, place + 1) for place in range(count - 1)]
    nested = [(place, count - 1 - place) for place in range(skips)]
    found = item([[0]] * count, *chain, *nested)
    edges, most = edges_of(found, arranged(found))
    assert most == lanes
    assert max(edge[2] for edge in edges) == lanes


def test_a_tie_orders_nothing():
    tied = item([[0], [0]])
    tied["flows"] = [{"from": 1, "to": 0, "tie": "weight"}]
    assert arranged(tied) == [[0, 1]]
    assert edges_of(tied, [[0, 1]])[0][0][:3] == [1, 0, 1]


def test_an_empty_box_has_no_rows():
    assert arranged(item([])) == []
