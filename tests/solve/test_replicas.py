from __future__ import annotations

import dataclasses

import pytest

from partitioner.errors import OptionError
from partitioner.solve import Link, Tie, score, search, solve
from partitioner.solve.replicas import all_reduce_s
from tests.solve.toys import chain


def state(stages, micro_batches, replicas):
    problem = chain((1.0,) * 8, stages=stages, micro_batches=micro_batches)
    units = [dataclasses.replace(u, gradient_bytes=100) for u in problem.units]
    return dataclasses.replace(problem, units=tuple(units))


def test_without_a_price_on_sums_replicas_alone_are_best():
    ways = search(state, devices=4, micro_batches=16, link=Link(bytes_per_s=1e12))
    assert [(way.stages, way.replicas) for way in ways] == [(1, 4), (2, 2), (4, 1)]
    assert ways[0].step_s == pytest.approx(4 * 8.0)
    assert ways[2].step_s == pytest.approx((16 + 3) * 2.0)


def test_dear_sums_make_a_pipeline_the_best():
    ways = search(state, devices=4, micro_batches=16, link=Link(bytes_per_s=10.0))
    assert [way.stages for way in ways] == [4, 2, 1]
    whole = next(way for way in ways if way.stages == 1)
    assert whole.all_reduce_s == pytest.approx(2 * 3 / 4 * 800 / 10.0)
    assert whole.step_s == pytest.approx(4 * 8.0 + whole.all_reduce_s)


def test_what_cannot_be_had_is_last_and_says_why():
    ways = search(
        state, devices=6, micro_batches=4, link=Link(bytes_per_s=1.0), stages=[2, 6, 5]
    )
    assert [way.stages for way in ways] == [6, 2]
    assert "cannot be shared by 3" in ways[1].reason
    many = search(state, devices=9, micro_batches=9, link=Link(bytes_per_s=1.0))
    assert "at most 8" in many[-1].reason


def test_a_tied_weight_is_summed_on_every_rank_with_a_copy():
    problem = dataclasses.replace(
        state(2, 4, 2), ties=(Tie(units=(0, 7), static_bytes=0, gradient_bytes=1000),)
    )
    link = Link(bytes_per_s=1.0, latency_s=3.0)
    halves = (0, 0, 0, 0, 1, 1, 1, 1)
    assert all_reduce_s(problem, halves, 2, link) == 1 * (400 + 1000) + 2 * 3.0
    assert all_reduce_s(problem, halves, 1, link) == 0.0


def test_the_step_is_the_plan_s_plus_the_sum():
    (way,) = search(
        state, devices=4, micro_batches=8, link=Link(bytes_per_s=100.0), stages=[2]
    )
    assert way.problem is not None
    found = solve(way.problem)
    step_s = score(way.problem, found.stage_of, found.recomputed).step_s
    assert way.step_s == pytest.approx(step_s + 400 / 100.0)


def test_a_wrong_argument_is_told():
    with pytest.raises(OptionError, match="devices=0"):
        search(state, devices=0, micro_batches=1, link=Link(bytes_per_s=1.0))
