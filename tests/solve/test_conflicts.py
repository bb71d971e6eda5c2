from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

from partitioner.errors import ConflictError, InfeasibleError, MemoryLimitError
from partitioner.solve import Constraint, check, solve
from tests.solve.oracle import best_objective_s
from tests.solve.toys import chain


def pin(unit, stage):
    return Constraint(
        kind="pin", words=f"pin u{unit} to {stage}", parts=((unit,),), stage=stage
    )


def together(*units):
    return Constraint(kind="together", words=f"keep {units}", parts=(units,))


def conflict_of(problem):
    with pytest.raises(ConflictError) as caught:
        solve(problem)
    return caught.value.constraints


def test_the_two_that_contradict_are_named_among_others():
    problem = chain(
        (1.0,) * 6,
        stages=2,
        constraints=(together(0, 1), pin(2, 1), pin(3, 0), pin(5, -1)),
    )
    assert conflict_of(problem) == ("pin u2 to 1", "pin u3 to 0")


def test_one_that_cannot_be_met_is_named_alone():
    problem = chain((1.0,) * 4, stages=2, constraints=(together(0, 3), pin(0, 0)))
    assert conflict_of(problem) == ("keep (0, 3)",)


def test_three_that_conflict_only_together_are_all_named():
    wishes = (pin(0, 0), together(0, 1), together(1, 2), pin(2, 1), pin(5, 2))
    problem = chain((1.0,) * 6, stages=3, constraints=wishes)
    named = conflict_of(problem)
    assert len(named) == 3
    assert "pin u5 to 2" not in named
    kept = [wish for wish in wishes if wish.words in named]
    for fewer in itertools.combinations(kept, len(kept) - 1):
        other = dataclasses.replace(problem, constraints=fewer)
        assert math.isfinite(best_objective_s(other))


def test_the_memory_limit_can_be_one_of_them():
    problem = chain(
        (1.0,) * 4,
        stages=2,
        static=[10] * 4,
        memory_limit_bytes=25,
        constraints=(together(0, 1, 2), pin(3, 1)),
    )
    assert conflict_of(problem) == ("keep (0, 1, 2)", "the memory limit")


def test_memory_alone_is_no_conflict_of_constraints():
    problem = chain(
        static=[10] * 4, memory_limit_bytes=5, constraints=(together(0, 1),)
    )
    with pytest.raises(MemoryLimitError):
        solve(problem)


def test_equal_stages_hold_equally_many():
    equal = Constraint(
        kind="equal", words="equal", parts=tuple((unit,) for unit in range(1, 5))
    )
    problem = chain((1.0, 9.0, 1.0, 1.0, 1.0, 1.0), stages=2, constraints=(equal,))
    found = solve(problem, gap=0.0)
    assert check(problem, found) == []
    assert found.stage_of[1:5] == (0, 0, 1, 1)
    free = solve(dataclasses.replace(problem, constraints=()), gap=0.0)
    assert free.objective_s < found.objective_s


def test_parts_that_no_number_of_stages_divides_are_told():
    equal = Constraint(
        kind="equal", words="equal", parts=tuple((unit,) for unit in range(3))
    )
    with pytest.raises(InfeasibleError, match="equal"):
        solve(chain((1.0,) * 4, stages=2, constraints=(equal,)))
