from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partitioner.assess import compare
from partitioner.solve import score
from tests.assess.cases import Tower, case_of, planned, tower


def by_name(comparison):
    return {split.name: split for split in comparison.splits}


def test_the_plan_comes_first_with_its_own_numbers():
    plan = tower()
    mine = plan.compare().splits[0]

    assert mine.name == "this plan"
    assert mine.stage_of == plan.assignment.stage_of
    assert mine.step_s == plan.objective_s
    assert mine.simulated_s == plan.simulation.step_s
    assert mine.memory_bytes == max(stage.memory_bytes for stage in plan.stages)
    assert mine.faults == ()


def test_rivals_are_scored_like_the_plan_and_none_beats_its_bound():
    plan = tower()
    for split in plan.compare().splits:
        found = score(plan.problem, split.stage_of, (False,) * len(split.stage_of))
        assert split.step_s == found.step_s >= plan.bound_s
        assert split.bottleneck_s == max(stage.time_s for stage in found.stages)
        assert 0 < split.bubble_share < 1
        assert split.recompute_s == 0


def test_cutting_between_layers_only_cannot_balance_a_wide_block():
    splits = by_name(tower().compare())

    for name in ("DeepSpeed uniform", "DeepSpeed parameters", "equal blocks"):
        assert splits[name].simulated_s > splits["this plan"].simulated_s


def test_rivals_recompute_what_they_must_and_are_marked_where_nothing_helps():
    case = case_of(tower())
    free = by_name(compare(case))["DeepSpeed uniform"]
    needs = free.memory_bytes

    def limited(limit_bytes):
        problem = replace(case.problem, memory_limit_bytes=limit_bytes)
        return by_name(compare(replace(case, problem=problem)))["DeepSpeed uniform"]

    tight = limited(needs - 1)
    assert tight.faults == ()
    assert tight.memory_bytes < needs
    assert tight.recompute_s > 0
    hopeless = limited(needs // 20)
    assert hopeless.faults[0].startswith("out of memory on stage")
    assert hopeless.memory_bytes > needs // 20


def test_stages_without_layers_are_a_fault():
    splits = by_name(tower(stages=8).compare())

    assert any(
        fault.startswith("nothing on stage") for fault in splits["equal blocks"].faults
    )


def test_stages_without_trainable_parameters_are_a_fault():
    with torch.device("meta"):
        model = Tower()
    frozen = [model.scale, *model.blocks[3:].parameters(), *model.norm.parameters()]
    for parameter in [*frozen, *model.head.parameters()]:
        parameter.requires_grad_(False)
    splits = by_name(planned(model, 3).compare())

    assert splits["this plan"].faults == ()
    # The last three of its eleven layers are the norm, the scale and the head.
    faults = splits["DeepSpeed uniform"].faults
    assert faults == ("nothing to train on stage 2",)


def test_data_has_every_number_and_no_list_as_long_as_the_model():
    rows = tower().compare().to_dict()["splits"]

    assert set(rows[0]) == {
        "name",
        "bottleneck_s",
        "step_s",
        "simulated_s",
        "bubble_share",
        "memory_bytes",
        "recompute_s",
        "faults",
    }


@pytest.mark.parametrize("name", ["this plan", "equal FLOPs"])
def test_the_table_names_every_cut(name):
    assert name in str(tower().compare())
