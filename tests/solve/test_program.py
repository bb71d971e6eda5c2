from __future__ import annotations

import math

import pytest
from hypothesis import given

from partitioner.solve import score
from partitioner.solve.backends import run_solver
from partitioner.solve.candidates import candidate_of
from partitioner.solve.program import Program
from partitioner.solve.reads import block_reads
from partitioner.solve.windows import reach
from tests.solve.oracle import best_objective_s, problems, stage_assignments
from tests.solve.settings import thorough
from tests.solve.test_intervals import pinned_groups
from tests.solve.toys import chain


def program_of(problem, target_s=None):
    groups = pinned_groups(problem)
    windows = reach(groups).windows(1e9)
    return groups, Program(
        groups,
        windows,
        block_reads(groups),
        target_s=target_s,
        longest_s=math.inf,
    )


def solved(program):
    return run_solver(program.model, solver="cbc", gap=0.0, time_limit_s=30.0)


@thorough
@given(problem=problems(max_units=6, rich=False, varied=True))
def test_the_program_equals_brute_force(problem):
    groups, program = program_of(problem)
    outcome = solved(program)
    best_s = best_objective_s(problem)
    if math.isinf(best_s):
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal"
    assert program.objective_s(outcome.values) == pytest.approx(
        best_s, rel=1e-5, abs=1e-6
    )
    stage_of = groups.stage_of_units(program.stage_of_groups(outcome.values))
    assert stage_of in set(stage_assignments(problem))
    found = candidate_of(problem, stage_of, "cbc")
    assert found is not None
    assert found.objective_s == pytest.approx(best_s, rel=1e-5, abs=1e-6)


def test_with_many_micro_batches_the_program_balances_the_longest_stage():
    problem = chain((3.0, 1.0, 1.0, 2.0, 5.0, 1.0), stages=3, micro_batches=1000)
    groups, program = program_of(problem)
    outcome = solved(program)
    stage_of = groups.stage_of_units(program.stage_of_groups(outcome.values))
    longest_s = [
        max(row.time_s for row in score(problem, legal, (False,) * 6).stages)
        for legal in stage_assignments(problem)
    ]
    rows = score(problem, stage_of, (False,) * 6).stages
    assert max(row.time_s for row in rows) == min(longest_s)


def test_a_target_below_the_optimum_has_no_solution():
    problem = chain((1.0, 2.0, 3.0, 4.0), hops=[1.0, 0.5, 2.0])
    best_s = best_objective_s(problem)
    assert solved(program_of(problem, best_s * 0.999)[1]).status == "infeasible"
    assert solved(program_of(problem, best_s * 1.001)[1]).status == "optimal"
