from __future__ import annotations

import pytest
import torch
from torch import nn

from partitioner import partition
from partitioner.cost.inflight import in_flight
from partitioner.errors import ConflictError, OptionError


def model():
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))


def plan(**options):
    options.setdefault("stages", 2)
    return partition(
        model(), example_inputs=torch.zeros(4, 16), device="h100", **options
    )


def stage_of_layers(found):
    stages = {
        node.target: stage
        for node, stage in found.placement.stage_of.items()
        if node.op == "call_module"
    }
    return [stages[str(index)] for index in range(8)]


def test_a_pinned_module_is_on_its_stage():
    assert stage_of_layers(plan(pin={"5": 0}))[:6] == [0] * 6
    assert stage_of_layers(plan(pin={"1": -1}))[1:] == [1] * 7


def test_equal_stages_hold_equally_many():
    assert stage_of_layers(plan(equal_stages=["2", "3"]))[:4] == [0, 0, 0, 1]


def test_wishes_that_conflict_are_named_in_the_user_s_words():
    with pytest.raises(ConflictError) as caught:
        plan(pin={"2": 1, "4": 0}, keep_together=[["6", "7"]])
    assert caught.value.constraints == ("pin 2 to stage 1", "pin 4 to stage 0")


def test_a_slow_device_gets_less():
    stages = stage_of_layers(plan(devices=[{"speed": 3.0}, {"speed": 1.0}]))
    assert stages.count(0) > stages.count(1)
    with pytest.raises(OptionError, match="devices"):
        plan(devices=[{"speed": 1.0}])
    with pytest.raises(OptionError, match="speed"):
        plan(devices=[{"speed": 0}, {}])


def test_dualpipev_plans_two_stages_for_each_rank():
    found = plan(schedule="dualpipev")
    assert len(found.stages) == 4
    assert sorted(set(stage_of_layers(found))) == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="micro-batches"):
        plan(schedule="dualpipev", micro_batches=3)


def test_the_bottleneck_is_the_objective_on_request():
    found = plan(objective="bottleneck")
    longest_s = max(stage.time_s for stage in found.stages)
    assert found.objective_s == pytest.approx(longest_s)


def test_a_plan_with_wishes_comes_back_from_its_file(tmp_path):
    found = plan(pin={"5": 0}, equal_stages=["2", "6"], devices=[{"speed": 2.0}, {}])
    found.save(tmp_path / "plan.json")
    again = type(found).load(tmp_path / "plan.json", found.graph.model)
    assert again.problem == found.problem
    assert again.assignment.stage_of == found.assignment.stage_of


def test_dualpipev_holds_most_on_the_first_stage_and_least_on_the_last():
    assert in_flight(4, 8, "dualpipev") == (4, 3, 2, 1)
    assert in_flight(4, 8) == (4, 3, 2, 1)
    assert in_flight(2, 8, "dualpipev") == (2, 1)
