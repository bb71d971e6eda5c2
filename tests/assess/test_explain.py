from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
import torch
from torch import nn

from partitioner.assess.limits import find_limits
from partitioner.report.units import format_seconds
from tests.assess.cases import Tower, planned, tower

if TYPE_CHECKING:
    from partitioner.assess.variants import Solver


def limits_of(explanation):
    return {limit.kind: limit for limit in explanation.limits}


def test_neighbouring_numbers_of_stages_are_really_solved():
    told: list[str] = []
    found = tower().explain(told.append)

    fewer, more = found.variants
    assert [fewer.change, more.change] == ["2 stages", "4 stages"]
    for stages, variant in ((2, fewer), (4, more)):
        again = tower(stages=stages, micro_batches=12)
        assert variant.step_s == again.objective_s
        assert variant.simulated_s == again.simulation.step_s
        assert f"solving with {stages} stages" in told
    assert fewer.step_s
    assert more.step_s
    assert fewer.step_s > found.step_s > more.step_s


def test_one_stage_has_no_neighbour_below():
    found = tower(stages=1).explain()

    assert [variant.change for variant in found.variants] == ["2 stages"]


def test_more_stages_than_the_model_has_are_refused_in_words():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    (_, more) = planned(model, 2, torch.ones(4, 8)).explain().variants

    assert more.step_s is None
    assert "at most 2" in more.reason
    assert "3 stages: no plan" in str(planned(model, 2, torch.ones(4, 8)).explain())


def test_equal_stages_take_the_work_and_its_bubble():
    plan = tower()
    found = plan.explain()

    total = plan.costed.total
    work_s = total.forward_s + total.backward_s
    assert found.even_s == pytest.approx(work_s / 3 * (12 + 2))
    assert found.even_bubble_share == pytest.approx(2 / 14)
    assert found.even_s <= found.bound_s <= found.step_s


def test_a_unit_above_an_equal_share_is_named():
    model = nn.Sequential(
        nn.Linear(64, 64),
        nn.Linear(64, 2048),
        nn.Linear(2048, 2048),
        nn.Linear(2048, 8),
    )
    plan = planned(model, 3, torch.ones(512, 64))
    first = plan.explain().limits[0]

    assert first.words.startswith("one indivisible unit: 2, on stage")
    costs = plan.costed.costs.items()
    (wide,) = (cost for node, cost in costs if node.target == "2")
    total = plan.costed.total
    least_s = 11 * (wide.forward_s + wide.backward_s)
    least_s += total.forward_s + total.backward_s
    assert least_s <= plan.bound_s
    assert f"no step is shorter than {format_seconds(least_s)}" in first.words
    assert "unit" not in limits_of(tower().explain())


def test_a_unit_that_the_host_starts_slowly_is_named():
    case = tower()._case
    work_s = sum(unit.device_s for unit in case.problem.units)
    units = [
        replace(unit, host_s=work_s if index == 1 else 0.0)
        for index, unit in enumerate(case.problem.units)
    ]
    late = replace(case, problem=replace(case.problem, units=tuple(units)))
    first = next(find_limits(late, cast("Solver", None)))
    assert first.kind == "unit"
    assert f"takes {format_seconds(work_s)} for one micro-batch" in first.words


def test_memory_is_named_where_the_limit_costs_time():
    free = tower()
    largest = max(stage.memory_bytes for stage in free.stages)
    bound = tower(memory_limit=int(0.6 * largest))
    found = limits_of(bound.explain())

    assert found["memory"].step_s == pytest.approx(free.objective_s, rel=0.02)
    assert "recomputation takes" in found["memory"].words
    assert "memory" not in limits_of(tower(memory_limit=2 * largest).explain())


def test_a_wide_cut_is_named_with_what_crosses_it():
    found = limits_of(tower().explain())["communication"]

    assert found.step_s < tower().objective_s
    assert "cross the boundary after stage" in found.words
    assert "blocks." in found.words


def test_constraints_are_solved_without():
    with torch.device("meta"):
        model = Tower()
    tied = planned(model, 3, no_cut_inside=["blocks.*"])
    found = limits_of(tied.explain())["constraint"]

    assert found.step_s == pytest.approx(tower().objective_s)
    assert "no_cut_inside (blocks.0…5)" in found.words
    assert "constraint" not in limits_of(tower().explain())


def test_the_strongest_limit_comes_first():
    with torch.device("meta"):
        model = Tower()
    found = planned(model, 3, no_cut_inside=["blocks.*"]).explain().limits

    steps = [limit.step_s for limit in found if limit.step_s is not None]
    assert len(steps) > 1
    assert steps == sorted(steps)


def test_modules_that_stay_together_are_named():
    with torch.device("meta"):
        model = Tower()
    tied = planned(model, 3, keep_together=[["blocks.0", "blocks.3"]])
    found = limits_of(tied.explain())["constraint"]

    assert "keep_together (blocks.0, blocks.3)" in found.words
