"""Answers with room for CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.errors import MemoryLimitError
from partitioner.solve import Device, Problem, check_room, needed_bytes, score, solve
from tests.solve.oracle import recomputations, stage_assignments
from tests.solve.toys import chain


def row(**fields) -> Problem:
    """Return six units, each of which holds something while its backward runs."""
    problem = chain((1.0, 2.0, 1.0, 3.0, 1.0, 2.0), saved=[40] * 6, **fields)
    units = tuple(replace(unit, transient_bytes=30) for unit in problem.units)
    return replace(problem, units=units, cuda_graphs=True)


def test_both_stages_of_a_rank_need_room():
    free = row(stages=4, schedule="dualpipev", in_flight=(4, 3, 2, 1))
    answer = solve(free)
    needed = needed_bytes(free, score(free, answer.stage_of, answer.recomputed))
    assert len(needed) == 2
    check_room(replace(free, memory_limit_bytes=max(needed)), answer)
    less = replace(free, memory_limit_bytes=max(needed) - 1)
    with pytest.raises(MemoryLimitError, match=r"rank \d would need") as told:
        check_room(less, answer)
    assert told.value.needed_bytes == max(needed)


def test_devices_have_limits_of_their_own():
    free = row()
    devices = tuple(Device(memory_limit_bytes=limit) for limit in (2**40, 1))
    with pytest.raises(MemoryLimitError) as told:
        check_room(replace(free, devices=devices), solve(free))
    assert (told.value.stage, told.value.limit_bytes) == (1, 1)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_no_answer_with_room_is_below_the_bound(share):
    free = row(hops=[0.1, 0.3, 0.2, 0.1, 0.4])
    answer = solve(free)
    most = max(needed_bytes(free, score(free, answer.stage_of, answer.recomputed)))
    problem = replace(free, memory_limit_bytes=int(share * most))
    found = solve(problem)
    check_room(problem, found)
    scores = (
        score(problem, stage_of, recomputed)
        for stage_of in stage_assignments(problem)
        for recomputed in recomputations(problem, stage_of)
    )
    best_s = min(
        each.objective_s
        for each in scores
        if max(needed_bytes(problem, each)) <= int(share * most)
    )
    assert found.bound_s <= best_s <= found.objective_s
