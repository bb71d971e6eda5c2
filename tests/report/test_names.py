"""Tests of partitioner.report.names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.report.names import compress_names, omit_repeats


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["wte"], ["wte"]),
        (["h.0", "h.1", "h.2"], ["h.0…2"]),
        (["a", "h.9", "h.10", "b"], ["a", "h.9…10", "b"]),
        (["h.0.attn", "h.1.attn"], ["h.0…1.attn"]),
        (["0", "1"], ["0…1"]),
        (["h.0", "h.2"], ["h.0", "h.2"]),
        (["h.1", "h.0"], ["h.1", "h.0"]),
        (["h.0", "g.1"], ["h.0", "g.1"]),
        (["h.0.0", "h.0.1", "h.1.1"], ["h.0.0…1", "h.1.1"]),
        (["h.0", "h.1", "h.2 (part)"], ["h.0…1", "h.2 (part)"]),
        (["h.2 (part)", "h.3", "h.4"], ["h.2 (part)", "h.3…4"]),
        (["h.0", "h.0"], ["h.0", "h.0"]),
    ],
)
def test_runs_of_neighbours_become_ranges(
    names: list[str], expected: list[str]
) -> None:
    assert compress_names(names) == expected


def expand(name: str) -> list[str]:
    """Undo a range, by its definition."""
    for position, part in enumerate(parts := name.split(".")):
        if "…" in part:
            first, last = (int(number) for number in part.split("…"))
            numbers = range(first, last + 1)
            return [
                ".".join([*parts[:position], str(number), *parts[position + 1 :]])
                for number in numbers
            ]
    return [name]


@given(
    st.lists(
        st.builds(
            lambda *parts: ".".join(parts),
            st.sampled_from(["0", "1", "2", "a"]),
            st.sampled_from(["0", "1", "2", "b"]),
        )
    )
)
def test_no_name_is_lost_and_order_is_kept(names: list[str]) -> None:
    expanded = [name for text in compress_names(names) for name in expand(text)]
    assert expanded == names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], []),
        (["m.h.0", "m.h.1"], ["m.h.0", "….1"]),
        (["m.h.3.a", "m.h.3.b.c", "m.norm"], ["m.h.3.a", "….b.c", "m.norm"]),
        (["a.b", "a.b"], ["a.b", "a.b"]),
        (["x.y.z", "x.y.z"], ["x.y.z", "….z"]),
        (["x.y", "x.y.z"], ["x.y", "x.y.z"]),
    ],
)
def test_what_a_name_shares_with_the_one_above_is_left_out(
    names: list[str], expected: list[str]
) -> None:
    assert omit_repeats(names) == expected
