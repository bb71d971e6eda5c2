from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from partitioner.solve.knapsack import Part, least_recompute
from tests.solve.settings import quick

parts = st.lists(
    st.builds(
        Part,
        forward_s=st.integers(0, 9).map(float),
        gain_bytes=st.integers(-3, 9).map(float),
        peak_bytes=st.integers(0, 9).map(float),
    ),
    max_size=7,
)


def covers(chosen, excess):
    peak = max((part.peak_bytes for part in chosen), default=0.0)
    return sum(part.gain_bytes for part in chosen) - peak >= excess


@quick
@given(choices=parts, excess=st.integers(-2, 25))
def test_the_choice_equals_brute_force(choices, excess):
    best_s = math.inf
    for size in range(len(choices) + 1):
        for chosen in itertools.combinations(choices, size):
            if covers(chosen, excess) or (not chosen and excess <= 0):
                best_s = min(best_s, sum(part.forward_s for part in chosen))
    found = least_recompute(choices, excess)
    if found is None:
        assert math.isinf(best_s)
    else:
        taken = [choices[index] for index in found]
        assert not taken or covers(taken, excess)
        assert sum(part.forward_s for part in taken) == best_s


def test_many_equal_parts_are_chosen_at_once():
    equal = [Part(forward_s=1.0, gain_bytes=10.0, peak_bytes=5.0)] * 200
    found = least_recompute(equal, 995.0)
    assert found is not None
    assert len(found) == 100


def test_thousands_of_different_parts_end_at_the_branch_limit():
    different = [
        Part(forward_s=1.0 + i % 7, gain_bytes=10.0 + i, peak_bytes=5.0 + i)
        for i in range(2000)
    ]
    found = least_recompute(different, 1_000_000.0)
    assert found is not None
    assert covers([different[index] for index in found], 1_000_000.0)
