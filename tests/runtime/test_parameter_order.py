"""Parameters that are moved into one tensor stay aligned there."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from torch import empty, nn

from partitioner.runtime.parameter_order import ALIGNED, aligned

SIZES = st.lists(
    st.one_of(st.integers(1, 300), st.integers(1, 9).map(lambda n: 64 * n))
)


@given(SIZES)
def test_each_begins_at_a_multiple_of_what_divides_it(sizes: list[int]):
    found = aligned([nn.Parameter(empty(size)) for size in sizes])
    assert sorted(each.numel() for each in found) == sorted(sizes)
    ends = itertools.accumulate((each.numel() for each in found), initial=0)
    for parameter, begin in zip(found, ends, strict=False):
        power = 1
        while parameter.numel() % (2 * power) == 0 and 2 * power <= ALIGNED:
            power *= 2
        assert begin % power == 0


def test_the_order_stays_where_all_are_aligned():
    weights = [nn.Parameter(empty(size)) for size in (256, 128, 384, 5, 640)]
    assert [each.numel() for each in aligned(weights)] == [256, 128, 384, 640, 5]
