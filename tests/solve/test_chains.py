from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.solve.chains import Chains, Cuts
from tests.solve.settings import quick

seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0])


@st.composite
def cut_tables(draw):
    groups = draw(st.integers(1, 4))
    subsets = [
        flags
        for flags in itertools.product((False, True), repeat=groups)
        if any(flags) and not all(flags)
    ]
    chosen = draw(st.sets(st.sampled_from(subsets), max_size=8)) if subsets else set()
    rows = sorted(chosen, key=lambda flags: (sum(flags), flags))
    held = np.array([[False] * groups, *rows, [True] * groups])
    work_s = np.array([draw(seconds) for _ in range(groups)])
    cut_s = np.array([[0.0, *[draw(seconds) for _ in rows], 0.0] for _ in range(2)])
    stages = draw(st.integers(1, 3))
    open_s = cut_s * draw(st.sampled_from([0.0, 0.5, 2.0]))
    weighted = np.array([draw(st.integers(0, 1)) for _ in range(groups)])
    return Cuts(
        held=held,
        starts_s=held @ work_s + open_s - cut_s,
        ends_s=held @ work_s + cut_s,
        cut_s=cut_s,
        row_of=(0, *[draw(st.integers(0, 1)) for _ in range(stages - 1)], 0),
        total_s=float(work_s.sum()),
        earliest=np.zeros(groups, dtype=np.int64),
        latest=np.full(groups, 9),
        weighted=held.astype(np.int64) @ weighted,
        weightless_s=draw(st.sampled_from([0.0, 0.5, math.inf])),
    )


def brute_force(cuts, weights):
    """Return the least value of all chains, as the class defines it."""
    least = math.inf
    last = len(cuts.held) - 1
    stages = len(cuts.row_of) - 1
    for inner in itertools.product(range(last + 1), repeat=stages - 1):
        chain = (0, *inner, last)
        pairs = list(itertools.pairwise(chain))
        if any((cuts.held[a] & ~cuts.held[b]).any() for a, b in pairs):
            continue
        bare = sum(cuts.weighted[a] == cuts.weighted[b] for a, b in pairs)
        extra_s = bare * cuts.weightless_s if bare else 0.0
        if math.isinf(extra_s):
            continue
        crossed_s = sum(
            cuts.cut_s[r, c] for r, c in zip(cuts.row_of, chain, strict=True)
        )
        sum_s = cuts.total_s + 2 * (crossed_s + extra_s)
        longest_s = max(
            cuts.ends_s[rows[1], pair[1]] - cuts.starts_s[rows[0], pair[0]]
            for rows, pair in zip(itertools.pairwise(cuts.row_of), pairs, strict=True)
        )
        value = weights[0] * max(longest_s, sum_s / stages) + weights[1] * sum_s
        least = min(least, value)
    return least


@quick
@given(
    cuts=cut_tables(),
    weights=st.sampled_from([(3.0, 1.0), (1.0, 0.0), (0.0, 1.0)]),
)
def test_the_best_chain_is_that_of_brute_force(cuts, weights):
    least = brute_force(cuts, weights)
    chains = Chains(cuts, 1e6, time.monotonic() + 60)
    assert chains.complete
    found = chains.best(weights, cutoff=1e9, close=0.0)
    if math.isinf(least):
        assert found.chain is None
    else:
        assert found.bound_s == pytest.approx(least, rel=1e-3)
        assert found.bound_s <= least * (1 + 1e-9) + 1e-12


@quick
@given(cuts=cut_tables())
def test_a_limit_leaves_out_only_longer_stages(cuts):
    weights = (3.0, 1.0)
    least = brute_force(cuts, weights)
    if math.isinf(least):
        return
    target = least * 1.01 + 0.1
    longest_s = (target - cuts.total_s) / weights[0]
    chains = Chains(cuts, longest_s, time.monotonic() + 60)
    found = chains.best(weights, cutoff=target, close=0.0)
    assert found.bound_s <= least * (1 + 1e-9) + 1e-12
    assert found.chain is not None


def test_a_late_deadline_lists_nothing():
    cuts = Cuts(
        held=np.array([[False], [True]]),
        starts_s=np.zeros((1, 2)),
        ends_s=np.array([[0.0, 1.0]]),
        cut_s=np.zeros((1, 2)),
        row_of=(0, 0),
        total_s=1.0,
        earliest=np.zeros(1, dtype=np.int64),
        latest=np.zeros(1, dtype=np.int64),
        weighted=np.array([0, 1]),
        weightless_s=0.0,
    )
    assert not Chains(cuts, 10.0, time.monotonic() - 1).complete
    assert Chains(cuts, 10.0, time.monotonic() + 60).complete
