from __future__ import annotations

import dataclasses
import re

import pytest

from partitioner.errors import MemoryLimitError
from partitioner.solve import check, score, solve
from partitioner.solve.memory_advice import in_flight_for
from tests.solve.toys import chain

BIG = chain(
    (1.0,) * 6,
    stages=2,
    static=[50] * 6,
    saved=[20] * 6,
    memory_limit_bytes=100,
)


def error_of(problem):
    with pytest.raises(MemoryLimitError) as caught:
        solve(problem)
    return caught.value


@pytest.mark.parametrize("mode", ["none", "auto", "all"])
def test_the_limit_that_is_named_would_be_enough_and_one_byte_less_is_not(mode):
    problem = dataclasses.replace(BIG, checkpointing=mode)
    error = error_of(problem)
    assert error.limit_bytes == 100
    enough = dataclasses.replace(problem, memory_limit_bytes=error.needed_bytes)
    found = solve(enough)
    assert check(enough, found) == []
    rows = score(enough, found.stage_of, found.recomputed).stages
    assert rows[error.stage].memory_bytes <= error.needed_bytes
    error_of(dataclasses.replace(problem, memory_limit_bytes=error.needed_bytes - 1))


def test_the_stage_and_the_excess_are_in_the_message():
    error = error_of(BIG)
    assert f"stage {error.stage} needs {error.needed_bytes} B" in error.message
    assert f"{error.needed_bytes - 100} B more than the limit of 100 B" in error.message


def test_the_number_of_stages_that_is_named_fits_and_fewer_do_not():
    error = error_of(BIG)
    (said,) = re.findall(r"(\d+) stages would fit the limit as it is", error.hint)
    named = int(said)
    for stages in range(2, named + 1):
        other = dataclasses.replace(
            BIG, stages=stages, in_flight=in_flight_for(BIG, stages)
        )
        if stages < named:
            error_of(other)
        else:
            assert check(other, solve(other)) == []


def test_full_recomputation_is_named_where_it_would_help():
    plain = chain(
        (1.0,) * 6,
        stages=2,
        saved=[100] * 6,
        memory_limit_bytes=250,
        checkpointing="none",
    )
    assert 'checkpointing="all"' in error_of(plain).hint
    assert solve(dataclasses.replace(plain, checkpointing="all")).stage_of


def test_no_larger_number_of_stages_is_named_where_none_fits():
    heavy = chain((1.0,) * 4, stages=2, static=[500] * 4, memory_limit_bytes=100)
    assert "would fit the limit as it is" not in error_of(heavy).hint


def test_in_flight_counts_grow_away_from_the_end_up_to_the_micro_batches():
    problem = chain((1.0,) * 6, stages=2, micro_batches=3)
    assert in_flight_for(problem, 2) == problem.in_flight
    assert in_flight_for(problem, 5) == (3, 3, 3, 2, 1)
    assert in_flight_for(problem, 1) == (1,)


def test_a_limit_as_it_is_printed_is_enough():
    heavy = chain((1.0,) * 4, stages=2, static=[1234567] * 4, memory_limit_bytes=100)
    (said,) = re.findall(r"a limit of ([\d.]+) MiB", error_of(heavy).hint)
    printed = dataclasses.replace(heavy, memory_limit_bytes=int(float(said) * 2**20))
    assert check(printed, solve(printed)) == []
