from __future__ import annotations

import dataclasses

from partitioner.solve import Link, Tie, replica_sums_s
from tests.solve.toys import chain

HALVES = (0, 0, 0, 0, 1, 1, 1, 1)


def problem(stages=2, **fields):
    found = chain((1.0,) * 8, stages=stages)
    units = [dataclasses.replace(u, gradient_bytes=100) for u in found.units]
    return dataclasses.replace(found, units=tuple(units), **fields)


def test_one_replica_sums_nothing():
    links = [Link(bytes_per_s=1.0)] * 2
    assert replica_sums_s(problem(), HALVES, links, replicas=1, zero_stage=1) == 0.0


def test_a_ring_passes_every_byte_but_one_share_twice():
    links = [Link(bytes_per_s=10.0, latency_s=3.0)]
    found = replica_sums_s(problem(1), (0,) * 8, links, replicas=4, zero_stage=0)
    assert found == 2 * 3 / 4 * 800 / 10.0 + 2 * 3 * 3.0


def test_with_zero_1_the_updated_weights_are_gathered_as_well():
    links = [Link(bytes_per_s=10.0, latency_s=3.0)]
    found = replica_sums_s(problem(1), (0,) * 8, links, replicas=4, zero_stage=1)
    assert found == 3 * 3 / 4 * 800 / 10.0 + 3 * 3 * 3.0


def test_the_slowest_rank_counts_be_it_by_its_link_or_by_its_gradients():
    slow, fast = Link(bytes_per_s=1.0), Link(bytes_per_s=8.0)
    uneven = (0, 0, 1, 1, 1, 1, 1, 1)

    def found(*links):
        return replica_sums_s(problem(), uneven, links, replicas=2, zero_stage=0)

    assert found(slow, slow) == 600
    assert found(slow, fast) == 200
    assert found(fast, fast) == 75


def test_a_tied_weight_is_summed_on_every_rank_with_a_copy():
    tie = Tie(units=(0, 7), static_bytes=0, gradient_bytes=1000)
    links = [Link(bytes_per_s=1.0)] * 2
    tied = problem(ties=(tie,))
    assert replica_sums_s(tied, HALVES, links, replicas=2, zero_stage=0) == 1400


def test_a_rank_with_two_stages_sums_both():
    paired = problem(4, schedule="dualpipev", in_flight=(4,) * 4)
    stage_of = (0, 1, 1, 1, 2, 2, 2, 3)
    links = [Link(bytes_per_s=1.0)] * 2
    assert replica_sums_s(paired, stage_of, links, replicas=2, zero_stage=0) == 600
