from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partitioner.solve.pair_dp import PairCosts, least_weighted_pairs
from tests.solve.settings import quick

SIZE = 6


@st.composite
def pair_costs(draw):
    ranks = draw(st.sampled_from([1, 2]))
    upper = np.triu(np.ones((SIZE, SIZE), dtype=bool), k=1)
    cells = st.lists(st.integers(0, 9), min_size=SIZE**2, max_size=SIZE**2)

    def matrix(outside):
        row = np.array(draw(cells), dtype=float).reshape(SIZE, SIZE)
        return np.where(upper, row, outside)

    return PairCosts(
        time_s=[matrix(math.inf) for _ in range(2 * ranks)],
        memory_bytes=[matrix(0.0) for _ in range(2 * ranks)],
        limits=[draw(st.sampled_from([math.inf, 12.0])) for _ in range(ranks)],
    )


def pair_times(costs):
    """Yield the rank times of every slicing that fits."""
    ranks, last = len(costs.limits), SIZE - 1
    for inner in itertools.combinations(range(1, last), 2 * ranks - 1):
        pairs = list(itertools.pairwise((0, *inner, last)))
        spent = [c[p] for c, p in zip(costs.time_s, pairs, strict=True)]
        held = [c[p] for c, p in zip(costs.memory_bytes, pairs, strict=True)]
        if all(held[r] + held[-1 - r] <= costs.limits[r] for r in range(ranks)):
            yield [spent[r] + spent[-1 - r] for r in range(ranks)]


@quick
@given(costs=pair_costs())
def test_the_longest_pair_equals_brute_force(costs):
    found = least_weighted_pairs(costs, (1.0, 0.0))
    best = min((max(times) for times in pair_times(costs)), default=None)
    assert (found.value if found else None) == best


@quick
@given(costs=pair_costs())
def test_a_weighted_sum_is_reached_and_not_beaten(costs):
    weights = (3.0, 0.5)
    values = [3 * max(times) + 0.5 * sum(times) for times in pair_times(costs)]
    found = least_weighted_pairs(costs, weights)
    if found is None:
        assert not values
    else:
        assert found.value in values
        assert found.value >= min(values)
        longest = min(max(times) for times in pair_times(costs))
        assert found.value <= min(v for v in values if v >= 3 * longest) * 1.5


def test_nothing_above_the_cutoff_is_returned():
    time_s = [np.array([[math.inf, 1.0, 2.0]] + [[math.inf] * 2 + [1.0]] * 2)] * 2
    costs = PairCosts(
        time_s=time_s, memory_bytes=[np.zeros((3, 3))] * 2, limits=[math.inf]
    )
    assert least_weighted_pairs(costs, (1.0, 0.0), cutoff=2.0) is None
    found = least_weighted_pairs(costs, (1.0, 0.0), cutoff=2.1)
    assert found is not None
    assert found.cuts == (0, 1, 2)
