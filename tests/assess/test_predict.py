from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.assess import SCHEDULES, predict
from partitioner.assess.predict import schedule_for
from partitioner.errors import OptionError
from partitioner.solve import score
from tests.solve.toys import chain

PLACED = (0, 1, 2, 3), (False,) * 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_take_the_formulas_time(schedule):
    problem = chain((3.0,) * 4, stages=4, micro_batches=8)

    found = predict(problem, *PLACED, schedule)

    assert found.schedule == schedule
    assert found.step_s == score(problem, *PLACED).step_s


def test_every_schedule_runs_the_same_work():
    problem = chain((3.0,) * 4, stages=4, micro_batches=8)

    for name in SCHEDULES:
        found = predict(problem, *PLACED, name)
        assert sum(use.compute_s for use in found.ranks) == pytest.approx(4 * 8 * 3.0)
        assert found.step_s >= 8 * 4 * 3.0 / len(found.ranks)


@pytest.mark.parametrize("schedule", ["dualpipev", "interleaved"])
def test_two_stages_share_a_rank(schedule):
    assert schedule_for(schedule, 4, 8).ranks == 2
    with pytest.raises(OptionError, match="3 stages do not divide into"):
        schedule_for(schedule, 3, 8)


def test_an_unknown_schedule_is_an_error_that_names_the_known_ones():
    with pytest.raises(OptionError, match="'zigzag'") as caught:
        schedule_for("zigzag", 2, 2)
    assert "zb-h2" in caught.value.hint


def test_a_dualpipev_problem_is_simulated_pair_by_pair():
    problem = replace(
        chain((3.0,) * 4, hops=[0.5] * 3, stages=4, micro_batches=8),
        schedule="dualpipev",
    )
    found = predict(problem, *PLACED, "dualpipev")
    scored = score(problem, *PLACED)

    assert len(found.ranks) == problem.ranks == 2
    for use, rank in zip(found.ranks, scored.ranks, strict=True):
        # Messages of one exchange run side by side, so they take no longer than one
        # after the other.
        assert use.compute_s == 8 * 6.0
        assert use.busy_s <= 8 * rank.time_s
