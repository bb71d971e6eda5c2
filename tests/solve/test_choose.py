from __future__ import annotations

import dataclasses
import math
import time

import pytest
from hypothesis import given

from partitioner.errors import (
    InfeasibleError,
    MemoryLimitError,
    OptionError,
    TooManyStagesError,
)
from partitioner.solve import Device, Value, ask, backends, check, ideals, solve
from tests.solve.oracle import best_objective_s, problems, unlimited
from tests.solve.settings import few, thorough
from tests.solve.toys import chain, layers


def answer(problem, **options):
    """Solve, or return None for what the user is told is impossible."""
    try:
        return solve(problem, **options)
    except (InfeasibleError, OptionError):
        return None


@thorough
@given(problem=problems(varied=True))
def test_gap_zero_equals_brute_force(problem):
    best_s = best_objective_s(problem)
    found = answer(problem, gap=0.0, time_limit_s=30.0)
    if math.isinf(best_s):
        assert found is None
        return
    assert found is not None
    assert check(problem, found) == []
    assert found.warnings == ()
    assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-9)
    assert found.bound_s <= best_s * (1 + 1e-9)


@thorough
@given(problem=problems(max_units=6, far=True))
def test_far_boundaries_equal_brute_force(problem):
    best_s = best_objective_s(problem)
    found = answer(problem, gap=0.0, time_limit_s=30.0)
    assert (found is None) == math.isinf(best_s)
    if found is not None:
        assert check(problem, found) == []
        assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-9)
        assert found.bound_s <= best_s * (1 + 1e-9)


@few
@given(problem=problems(max_units=5, varied=True, far=True))
def test_far_boundaries_of_all_kinds_equal_brute_force(problem):
    best_s = best_objective_s(problem)
    found = answer(problem, gap=0.0, time_limit_s=30.0)
    assert (found is None) == math.isinf(best_s)
    if found is not None:
        assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-9)


@few
@given(problem=problems(varied=True))
def test_the_program_alone_equals_brute_force_too(problem):
    best_s = best_objective_s(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ideals, "MOST_IDEALS", 0)
        found = answer(problem, gap=0.0, time_limit_s=30.0)
    assert (found is None) == math.isinf(best_s)
    if found is not None:
        assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-9)
        assert found.bound_s <= best_s * (1 + 1e-9)


@few
@given(problem=problems(varied=True))
def test_bound_and_objective_enclose_the_optimum_at_any_gap(problem):
    best_s = best_objective_s(problem)
    found = answer(problem, gap=0.2)
    if found is not None:
        assert found.bound_s <= best_s * (1 + 1e-9)
        assert best_s <= found.objective_s * (1 + 1e-9)
        assert found.gap <= 0.2 + 1e-6
    else:
        assert math.isinf(best_s)


@few
@given(problem=problems(limited=True, checkpointing="auto"))
def test_choosing_is_no_worse_than_recomputing_all_or_nothing(problem):
    found = answer(problem, gap=0.0)
    for mode in ("none", "all"):
        other = answer(dataclasses.replace(problem, checkpointing=mode), gap=0.0)
        if other is not None:
            assert found is not None
            assert found.objective_s <= other.objective_s * (1 + 1e-5)


@few
@given(problem=problems(checkpointing="auto"))
def test_nothing_is_recomputed_when_memory_suffices(problem):
    roomy = dataclasses.replace(problem, memory_limit_bytes=10**9)
    for ample in (roomy, unlimited(problem)):
        found = answer(ample)
        assert found is None or not any(found.recomputed)


@few
@given(problem=problems(varied=True))
def test_equal_problems_get_equal_answers(problem):
    first, second = answer(problem), answer(problem)
    if first is None or second is None:
        assert first is second
    else:
        assert dataclasses.replace(first, solve_s=0.0) == dataclasses.replace(
            second, solve_s=0.0
        )


def test_a_slow_plan_that_fits_does_not_end_the_search(monkeypatch):
    """The fastest plan of all does not fit, the first one does: one between is best."""
    monkeypatch.setattr(ideals, "MOST_IDEALS", 0)
    problem = chain(
        (5.0, 0.0, 0.0, 0.0, 0.0, 1.0),
        hops=[0.0] * 5,
        stages=3,
        micro_batches=1,
        static=[20, 0, 0, 4, 28, 0],
        trainable=[True, True, True, False, True, True],
        checkpointing="none",
        objective="bottleneck",
        transfer="ends",
        memory_limit_bytes=48,
        devices=(Device(), Device(speed=3.0), Device()),
    )
    values = (
        Value(producer=0, consumers=(4,), hop_s=3.0, wire_bytes=0),
        Value(producer=2, consumers=(4,), hop_s=1.0, wire_bytes=0),
        Value(producer=3, consumers=(4,), hop_s=0.0, wire_bytes=0),
    )
    problem = dataclasses.replace(problem, values=values)
    found = solve(problem, gap=0.0)
    assert found.objective_s == pytest.approx(best_objective_s(problem))
    assert found.gap == pytest.approx(0.0, abs=1e-6)


# ---------------------------------------------------------------- no solver


@pytest.fixture
def open_problem(monkeypatch):
    """A problem whose gap only the program closes."""
    monkeypatch.setattr(ideals, "MOST_IDEALS", 0)
    problem = chain(
        (3.0, 2.0, 2.0, 3.0, 1.0, 4.0), hops=[2.0, 2.5, 2.0, 2.5, 2.0], stages=3
    )
    assert "integer program" in solve(problem, gap=0.0).proof
    return problem


@pytest.mark.parametrize("body", ["exit 1", "sleep 60"])
def test_without_a_working_solver_the_slicing_is_returned_with_its_gap(
    body, open_problem, tmp_path, monkeypatch
):
    script = tmp_path / "cbc"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(backends, "_cbc_path", lambda: str(script))
    started = time.monotonic()
    found = solve(open_problem, gap=0.0, time_limit_s=2.0)
    assert time.monotonic() - started < 15
    assert found.solver == "order-dp"
    assert found.gap > 0
    assert found.bound_s <= best_objective_s(open_problem)
    assert len(found.warnings) == 1
    assert check(open_problem, found) == []


def test_highs_closes_the_gap_too(open_problem):
    pytest.importorskip("highspy")
    found = solve(open_problem, solver="highs", gap=0.0)
    assert found.warnings == ()
    assert found.objective_s == pytest.approx(best_objective_s(open_problem))
    assert found.gap <= 2e-6


@pytest.fixture
def tight_problem():
    """A problem that must recompute, with a gap that only the program closes."""
    problem = chain(
        (3.0, 2.0, 2.0, 3.0, 1.0, 4.0),
        hops=[0.25] * 5,
        stages=3,
        saved=[20, 30, 20, 30, 20, 40],
        memory_limit_bytes=110,
    )
    assert any(solve(problem, gap=0.0).recomputed)
    return problem


@pytest.mark.parametrize(
    "limit", ["MOST_BINARIES_CHOOSING", "MOST_BINARIES", "BINARIES_PER_S"]
)
def test_too_large_a_program_leaves_an_honest_gap(limit, tight_problem, monkeypatch):
    monkeypatch.setattr(ask, limit, 0)
    found = solve(tight_problem, gap=0.0)
    best_s = best_objective_s(tight_problem)
    assert found.bound_s < best_s <= found.objective_s * (1 + 1e-9)
    assert len(found.warnings) == 1
    assert check(tight_problem, found) == []


# ---------------------------------------------------------------- far boundaries


def far_chain(far_hops, **fields):
    """Return eight equal units on four stages, with a price each at a far boundary."""
    problem = chain((1.0,) * 8, hops=[0.25] * 7, stages=4, **fields)
    values = [
        dataclasses.replace(value, far_hop_s=far_s)
        for value, far_s in zip(problem.values, far_hops, strict=True)
    ]
    return dataclasses.replace(problem, values=tuple(values))


TWO_NODES = (False, True, False)
CHEAP_AFTER_2 = (9.0, 9.0, 0.5, 9.0, 9.0, 9.0, 9.0)


def test_the_cut_that_is_cheap_over_the_network_lies_between_the_nodes():
    plain = solve(far_chain(CHEAP_AFTER_2), gap=0.0)
    assert plain.stage_of == (0, 0, 1, 1, 2, 2, 3, 3)
    found = solve(far_chain(CHEAP_AFTER_2, far=TWO_NODES), gap=0.0)
    assert [found.stage_of.index(2), found.stage_of.count(0)] == [3, 1]
    assert found.objective_s > plain.objective_s
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def test_equal_links_change_nothing():
    plain = far_chain([0.25] * 7)
    for far in ((False,) * 3, TWO_NODES, (True,) * 3):
        equal = solve(dataclasses.replace(plain, far=far), gap=0.0)
        assert dataclasses.replace(equal, solve_s=0.0) == dataclasses.replace(
            solve(plain, gap=0.0), solve_s=0.0
        )


def test_a_far_link_may_be_the_faster_one():
    problem = far_chain([0.0] * 7, far=TWO_NODES)
    found = solve(problem, gap=0.0)
    assert found.objective_s == pytest.approx(best_objective_s(problem))


def test_far_boundaries_of_a_large_model_are_proven_too():
    problem = layers(24, 12, stages=8, far=(False, False, False, True, *[False] * 3))
    values = [
        dataclasses.replace(value, far_hop_s=200 * value.hop_s)
        for value in problem.values
    ]
    problem = dataclasses.replace(problem, values=tuple(values))
    found = solve(problem, gap=0.01, time_limit_s=60.0)
    assert found.gap <= 0.01
    crossing = [
        value
        for value in problem.values
        if found.stage_of[value.producer]
        < 4
        <= max(found.stage_of[reader] for reader in value.consumers)
    ]
    cheapest = min(value.hop_s for value in problem.values)
    assert sum(value.hop_s for value in crossing) <= 0.05 + 2 * cheapest


# ---------------------------------------------------------------- bad input


PLAIN = {"checkpointing": "none"}


@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        ({"stages": 0, "in_flight": ()}, {}, "stages=0"),
        ({"stages": -1, "in_flight": ()}, {}, "stages=-1"),
        ({"micro_batches": 0}, {}, "micro_batches=0"),
        ({"in_flight": (1,)}, {}, "in_flight"),
        ({"far": (True, False)}, {}, "far has 2 entries, not 1"),
        ({"far": (True,), "transfer": "ends"} | PLAIN, {}, "far must be empty"),
        ({"units": (), "values": ()}, {}, "no units"),
        ({}, {"gap": 1.0}, "gap=1.0"),
        ({}, {"gap": -0.1}, "gap=-0.1"),
        ({}, {"time_limit_s": 0.0}, "time_limit_s"),
        ({}, {"solver": "glpk"}, "glpk"),
    ],
)
def test_a_wrong_argument_is_named(change, options, named):
    with pytest.raises(OptionError, match=named):
        solve(dataclasses.replace(chain(), **change), **options)


def test_the_largest_number_of_stages_is_named_and_works():
    problem = chain((1.0,) * 5, stages=9, trainable=[True, False, True, True, False])
    with pytest.raises(TooManyStagesError) as caught:
        solve(problem)
    assert caught.value.largest == 3
    fewer = dataclasses.replace(problem, stages=3, in_flight=(3, 2, 1))
    assert check(fewer, solve(fewer)) == []


def test_nothing_trainable_is_told_as_such():
    with pytest.raises(TooManyStagesError, match="requires_grad") as caught:
        solve(chain(trainable=[False] * 4, stages=1))
    assert caught.value.largest == 0


def test_pins_that_starve_a_stage_are_told():
    problem = chain((1.0,) * 4, stages=3, pins=[0, 0, 2, 2])
    with pytest.raises(InfeasibleError, match="without a parameter"):
        solve(problem)


def test_too_little_memory_is_told():
    with pytest.raises(MemoryLimitError):
        solve(chain(static=[10] * 4, memory_limit_bytes=5))


# ---------------------------------------------------------------- size


def test_one_stage_holds_everything():
    problem = chain(stages=1)
    found = solve(problem)
    assert found.stage_of == (0,) * 4
    assert found.gap == 0.0


def test_thousands_of_units_take_seconds_and_end_within_the_gap():
    problem = layers(100, 50, stages=8)
    started = time.monotonic()
    found = solve(problem, gap=0.01, time_limit_s=60.0)
    assert time.monotonic() - started < 30
    assert found.gap <= 0.01
    assert found.warnings == ()


def test_every_step_is_told():
    told: list[str] = []
    solve(chain(), progress=told.append)
    assert told
    assert all(isinstance(line, str) for line in told)
