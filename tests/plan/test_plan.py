from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from deepspeed.pipe import LayerSpec
from safetensors.torch import save_file

from partitioner import OptionError, PartitionerError, Plan, WeightsError, partition
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment
from partitioner.solve import check
from tests.models import MODELS


@cache
def plan_of(model: str, stages: int, checkpointing: str = "auto") -> Plan:
    entry = MODELS[model]
    return partition(
        entry.model(),
        stages,
        example_inputs=entry.example(),
        micro_batches=4,
        device="h100",
        checkpointing=checkpointing,  # type: ignore[arg-type]
    )


def test_stages_add_up_to_the_model():
    plan = plan_of("gpt2", 3)
    model = plan.graph.model
    tied = model.get_parameter("lm_head.weight").numel()
    own = sum(parameter.numel() for parameter in model.parameters())
    total = plan.costed.total

    assert sum(stage.parameters for stage in plan.stages) == own + tied
    assert sum(stage.forward_flops for stage in plan.stages) == total.forward_flops
    assert sum(stage.forward_s for stage in plan.stages) == pytest.approx(
        total.forward_s
    )
    assert [stage.index for stage in plan.stages] == [0, 1, 2]
    assert plan.stages[-1].sent_bytes == 0
    assert all(stage.sent_bytes > 0 for stage in plan.stages[:-1])
    assert plan.bound_s <= plan.objective_s
    assert plan.gap <= plan.options.gap


def test_every_module_is_named_once_or_in_parts():
    named = [name for stage in plan_of("gpt2", 3).stages for name in stage.modules]
    whole = [name for name in named if not name.endswith("(part)")]

    assert len(whole) == len(set(whole))
    assert {"transformer.wte", "lm_head"} <= set(whole)
    paths = {path for path, _ in plan_of("gpt2", 3).graph.model.named_modules()}
    assert {name.removesuffix(" (part)") for name in named} <= paths


def test_all_repeated_layers_are_checkpointed_on_demand():
    plan = plan_of("gpt2", 2, "all")
    blocks = [name for stage in plan.stages for name in stage.checkpointed]
    assert sorted(set(blocks)) == [f"transformer.h.{index}" for index in range(4)]
    kinds = [spec.typename for spec in plan.layer_specs()]
    assert CheckpointedSegment in kinds

    plain = plan_of("gpt2", 2)
    assert not any(stage.checkpointed for stage in plain.stages)
    assert {spec.typename for spec in plain.layer_specs()} == {Segment}


def test_specs_build_segments_around_the_users_own_modules():
    plan = plan_of("gpt2", 2)
    specs = plan.layer_specs()
    assert all(isinstance(spec, LayerSpec) for spec in specs)
    built = [spec.build() for spec in specs]
    own = {id(module) for module in plan.graph.model.modules()}
    whole = dict(plan.graph.model.named_modules())
    shared = [
        name
        for segment in built
        for name, module in segment.named_modules()
        if id(module) in own and whole.get(name) is module
    ]
    assert "transformer.h.0.attn" in shared
    assert "lm_head" in shared
    names = {name for segment in built for name, _ in segment.named_parameters()}
    assert (
        names <= dict(plan.graph.model.named_parameters(remove_duplicate=False)).keys()
    )


def test_specs_give_a_model_on_meta_its_weights(tmp_path):
    whole = plan_of("gpt2", 2).graph.model
    save_file(dict(whole.named_parameters()), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = MODELS["gpt2"].model()
    example = MODELS["gpt2"].example()
    plan = partition(model, 2, example_inputs=example, micro_batches=4, device="h100")

    for spec in plan.layer_specs(weights=tmp_path):
        for name, parameter in spec.build().named_parameters():
            assert torch.equal(parameter, whole.get_parameter(name)), name
    assert all(parameter.is_meta for parameter in model.parameters())
    with pytest.raises(WeightsError, match="nowhere"):
        plan.layer_specs(weights=tmp_path / "nowhere")


def test_the_text_is_the_report():
    assert str(plan_of("gpt2", 2)).startswith("GPT2LMHeadModel: 2 stages")


def test_decisions_of_rank_0_replace_ours():
    plan = plan_of("gpt2", 2)
    told: dict[str, Any] = {}

    def agree(mine: dict[str, Any]) -> dict[str, Any]:
        told.update(mine)
        moved = list(mine["stage_of"])
        moved[moved.index(1)] = 0  # the first unit of stage 1 moves
        return {**mine, "stage_of": moved}

    agreed = plan.agreed_by(agree)

    assert told["fingerprint"] == plan.graph.fingerprint
    assert agreed.assignment.stage_of != plan.assignment.stage_of
    assert agreed.verify().ok
    assert check(agreed.problem, agreed.assignment) == []  # its price is its own
    assert agreed.objective_s >= plan.bound_s
    assert plan.agreed_by(lambda mine: mine) is plan


def test_the_configuration_leaves_nothing_to_defaults():
    config = plan_of("gpt2", 2).ds_config()
    assert config["gradient_accumulation_steps"] == 4
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_clipping"] == 0.0
    assert config["optimizer"]["type"] == "AdamW"


def test_overrides_are_merged_and_checked():
    plan = plan_of("gpt2", 2)
    config = plan.ds_config(
        zero_optimization={"stage": 1}, optimizer={"type": "SGD", "params": {"lr": 1}}
    )
    assert config["zero_optimization"] == {"stage": 1}
    assert config["optimizer"] == {"type": "SGD", "params": {"lr": 1}}
    for wrong in (
        {"zero_optimization": {"stage": 2}},
        {"gradient_accumulation_steps": 5},
        {"bf16": {"enabled": True}},
    ):
        with pytest.raises(OptionError):
            plan.ds_config(**wrong)


def test_another_assignment_has_its_own_layers():
    plan = plan_of("gpt2", 2)
    stage_of = list(plan.assignment.stage_of)
    stage_of[stage_of.index(1)] = 0
    moved = replace(plan, assignment=replace(plan.assignment, stage_of=tuple(stage_of)))
    assert plan.layers is plan.layers
    assert moved.layers.boundaries != plan.layers.boundaries


def test_the_step_is_simulated_under_the_plans_own_schedule():
    plan = plan_of("gpt2", 3)
    simulated = plan.simulation

    assert simulated.schedule == plan.options.schedule == "1f1b"
    assert [use.in_flight for use in simulated.ranks] == list(plan.problem.in_flight)
    for use, stage in zip(simulated.ranks, plan.score.stages, strict=True):
        assert use.busy_s == pytest.approx(4 * stage.time_s)
        assert use.in_flight_bytes == stage.in_flight_bytes
    told = plan.to_dict()["simulation"]
    assert told["step_s"] == simulated.step_s
    assert [rank["in_flight"] for rank in told["ranks"]] == [3, 2, 1]


def test_the_bottleneck_is_a_stage_also_where_ranks_have_two():
    entry = MODELS["gpt2"]
    plan = partition(
        entry.model(),
        2,
        example_inputs=entry.example(),
        device="h100",
        schedule="dualpipev",
    )
    slowest = plan.to_dict()["bottleneck_stage"]
    mates = plan.problem.stages_of(plan.score.bottleneck)
    assert len(mates) == 2
    assert slowest in mates
    times = [plan.stages[stage].time_s for stage in mates]
    assert plan.stages[slowest].time_s == max(times)


def test_other_schedules_are_simulated_on_demand():
    plan = plan_of("gpt2", 2)
    assert plan.simulate("gpipe").ranks[0].in_flight == 4
    assert plan.simulate("zb-h1").step_s < plan.simulate("gpipe").step_s
    with pytest.raises(OptionError, match="schedule is 'zigzag'"):
        plan.simulate("zigzag")


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(PartitionerError, match="the trace could not be written"):
        plan_of("gpt2", 2).save_trace(tmp_path / "absent" / "trace.json")
