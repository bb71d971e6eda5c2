from __future__ import annotations

import inspect

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


class Packs(nn.Module):
    def forward(self, x):
        return torch.quantize_per_tensor(x.detach(), 0.1, 3, torch.quint8)


class Unpacks(nn.Module):
    def forward(self, hidden, packed):
        return hidden + packed.reshape(-1, 16).dequantize()


class Quantizes(nn.Module):
    """Quantizes between its layers, once early for a late reader."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.packs = nn.ModuleList(Packs() for _ in range(4))
        self.unpacks = nn.ModuleList(Unpacks() for _ in range(4))

    def forward(self, x):
        early = self.packs[0](self.layers[0](x))
        hidden = self.layers[1](x)
        for index in range(1, 4):
            packed = self.packs[index](hidden)
            hidden = self.layers[index + 1](hidden)
            hidden = self.unpacks[index](hidden, packed)
        return self.unpacks[0](hidden, early)


def quantizing(stages: int, **options):
    return partition(
        Quantizes(),
        stages,
        example_inputs=torch.zeros(4, 16),
        device="h100",
        **options,
    )


# torch says that quantized tensors will go, some day.
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_cut_avoids_what_cannot_be_sent(stages):
    found = quantizing(stages)
    assert found.verify().ok
    packed = {
        stage
        for node, stage in found.placement.stage_of.items()
        if node.target is torch.quantize_per_tensor
    }
    assert max(packed) > 0  # and not because all of it is on the first stage


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_what_cannot_be_sent_is_named_where_the_user_wants_it_sent():
    with pytest.raises(ConflictError) as caught:
        quantizing(2, pin={"packs.0": 0, "unpacks.0": 1})
    named = caught.value.constraints
    assert {"pin packs.0 to stage 0", "pin unpacks.0 to stage 1"} < set(named)
    (words,) = [each for each in named if "pin" not in each]
    line = inspect.getsourcelines(Packs.forward)[1] + 1
    assert f"test_constraints.py:{line}) is a quantized tensor, which no" in words
    assert "not the model's own can be dropped" in caught.value.hint
