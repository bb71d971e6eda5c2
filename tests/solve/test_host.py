"""A stage takes as long as the slower of its device and its host."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve import Assignment, Problem, check, score, solve
from partitioner.solve.host import SHARES, may_wait, solve_with_host
from tests.solve.oracle import best_objective_s, problems
from tests.solve.settings import few, thorough
from tests.solve.toys import chain


def hosts(problem: Problem, over_device: list[float]) -> Problem:
    """Let the host need so many times what the device does, unit by unit."""
    units = (
        dataclasses.replace(unit, host_s=times * unit.device_s)
        for unit, times in zip(problem.units, over_device, strict=True)
    )
    return dataclasses.replace(problem, units=tuple(units))


@st.composite
def with_hosts(draw: st.DrawFn) -> Problem:
    problem = draw(problems(max_units=6, varied=True))
    times = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 4.0])
    return hosts(problem, [draw(times) for _ in problem.units])


@thorough
@given(problem=with_hosts())
def test_bounds_hold_and_answers_obey_the_rules(problem: Problem):
    best_s = best_objective_s(problem)
    try:
        found = solve(problem, gap=0.0, time_limit_s=30.0)
    except (InfeasibleError, OptionError):
        assert math.isinf(best_s)
        return
    assert check(problem, found) == []
    assert found.bound_s <= best_s * (1 + 1e-6)
    assert found.objective_s >= best_s * (1 - 1e-6)


@few
@given(problem=problems(max_units=6, varied=True))
def test_a_host_that_is_never_behind_changes_nothing(problem: Problem):
    ahead = hosts(problem, [0.5] * len(problem.units))
    try:
        plain = solve(problem, gap=0.0, time_limit_s=30.0)
    except (InfeasibleError, OptionError):
        return
    found = solve(ahead, gap=0.0, time_limit_s=30.0)
    assert found.objective_s == pytest.approx(plain.objective_s, rel=1e-6)
    assert found.bound_s == pytest.approx(plain.bound_s, rel=1e-6)


def test_what_a_stage_takes_is_the_slower_of_two_sums():
    problem = hosts(chain([1.0] * 4, stages=2), [2.0, 0.0, 2.0, 2.0])
    rows = score(problem, (0, 0, 1, 1), (False,) * 4).stages
    device_s = problem.units[0].device_s
    assert rows[0].time_s == pytest.approx(2 * device_s)  # the host catches up
    assert rows[1].time_s == pytest.approx(4 * device_s)
    assert rows[1].backward_s / rows[1].forward_s == pytest.approx(
        rows[0].backward_s / rows[0].forward_s
    )


def test_late_layers_that_the_host_starts_slowly_get_more_stages():
    """As in a residual network: few large images at first, many small ones later."""
    problem = slow_late_layers()
    found = solve(problem, gap=0.0)
    count = len(problem.units)
    best_s = min(
        score(problem, (0,) * cut + (1,) * (count - cut), (False,) * count).objective_s
        for cut in range(1, count)
    )
    assert found.objective_s == pytest.approx(best_s)
    assert found.bound_s <= found.objective_s
    by_unit = dataclasses.replace(
        problem,
        units=tuple(
            dataclasses.replace(
                unit,
                forward_s=unit.forward_s * max(1.0, unit.host_s / unit.device_s),
                backward_s=unit.backward_s * max(1.0, unit.host_s / unit.device_s),
                host_s=0.0,
            )
            for unit in problem.units
        ),
    )
    other = solve(by_unit, gap=0.0)
    rated_s = score(problem, other.stage_of, other.recomputed).objective_s
    assert found.objective_s < rated_s


def slow_late_layers() -> Problem:
    return hosts(chain([4.0] * 4 + [1.0] * 12, stages=2), [0.75] * 4 + [2.0] * 12)


class Asked:
    """Searches, and remembers what for; from some search on it finds nothing.

    Args:
        finds: Searches that find something.
    """

    def __init__(self, finds: int = 100) -> None:
        self.finds = finds
        self.problems: list[Problem] = []
        self.until_s: list[float] = []

    def __call__(self, problem: Problem, deadline: float) -> Assignment:
        self.problems.append(problem)
        self.until_s.append(deadline - time.monotonic())
        if len(self.problems) > self.finds:
            raise InfeasibleError("nothing")
        return solve(problem, gap=0.01)


def test_what_other_mixes_do_not_find_is_no_loss():
    problem, asked = slow_late_layers(), Asked(finds=1)
    found = solve_with_host(problem, asked, gap=0.0, deadline=time.monotonic() + 1000.0)
    assert len(asked.problems) == 2 + len(SHARES)
    assert not any(may_wait(mixed) for mixed in asked.problems)
    assert check(problem, found) == []
    late = solve_with_host(problem, Asked(), gap=0.0, deadline=0.0)
    assert late.stage_of == found.stage_of


def test_no_search_has_all_the_time_and_the_slower_of_both_comes_second():
    problem, asked = slow_late_layers(), Asked()
    solve_with_host(problem, asked, gap=0.0, deadline=time.monotonic() + 1000.0)
    assert max(asked.until_s) < 600
    assert asked.until_s[1] > asked.until_s[0]
    slower = [max(unit.device_s, unit.host_s) for unit in problem.units]
    assert [unit.device_s for unit in asked.problems[1].units] == pytest.approx(slower)


def test_one_search_is_enough_where_no_host_falls_behind():
    problem = hosts(chain([1.0] * 8, stages=2), [3.0] + [0.1] * 7)
    asked = Asked()
    found = solve_with_host(
        problem, asked, gap=0.02, deadline=time.monotonic() + 1000.0
    )
    assert len(asked.problems) == 1
    assert found.gap <= 0.02
    assert may_wait(problem)
    assert not may_wait(hosts(problem, [1.0] * 8))


def test_mixes_bound_nothing_where_weights_follow_the_work():
    """Forwards that the host starts slowly, backwards that it does not start at all."""
    plain = chain([1.0] * 8, stages=4, schedule="dualpipev")
    units = tuple(
        dataclasses.replace(
            unit,
            forward_s=1.0 - index % 2,
            backward_s=float(index % 2),
            host_s=2.0 - 2.0 * (index % 2),
        )
        for index, unit in enumerate(plain.units)
    )
    problem = dataclasses.replace(plain, units=units)
    found = solve(problem, gap=0.0)
    assert found.bound_s <= best_objective_s(problem) * (1 + 1e-9)


def test_pairs_of_stages_obey_the_rules_with_a_host():
    plain = chain([2.0] * 4 + [1.0] * 8, stages=4, schedule="dualpipev")
    problem = hosts(plain, [0.5] * 4 + [3.0] * 8)
    found = solve(problem, gap=0.0)
    assert check(problem, found) == []
    devices = solve(plain, gap=0.0)
    assert found.bound_s >= devices.bound_s * (1 - 1e-9)
    rated_s = score(problem, devices.stage_of, devices.recomputed).objective_s
    assert found.objective_s <= rated_s
