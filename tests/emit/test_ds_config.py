"""The DeepSpeed configuration of a plan, and what a user may not put into it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from partitioner.cost.memory import REDUCE_BUCKET
from partitioner.emit.ds_config import ds_config
from partitioner.errors import OptionError
from partitioner.graph import ModelGraph
from partitioner.options import Options
from tests.captured import captured


def options(optimizer: str = "adamw", **changes: Any) -> Options:
    return Options.checked(
        stages=2,
        micro_batches=6,
        memory_limit=None,
        optimizer=optimizer,
        checkpointing="auto",
        schedule="1f1b",
        solver="cbc",
        gap=0.01,
        time_limit_s=1,
        **changes,
    )


def in_dtype(dtype: torch.dtype) -> ModelGraph:
    return replace(captured("mlp"), dtype=dtype)


def config(dtype: torch.dtype = torch.float32, **overrides: Any) -> dict[str, Any]:
    return ds_config(in_dtype(dtype), options(), overrides)


def test_batch_sizes_come_from_the_plan():
    found = config()
    assert found["train_micro_batch_size_per_gpu"] == 2
    assert found["gradient_accumulation_steps"] == 6


def test_clipping_is_off_unless_it_is_asked_for():
    assert config()["gradient_clipping"] == 0.0
    assert config(gradient_clipping=1.0)["gradient_clipping"] == 1.0


@pytest.mark.parametrize(
    ("dtype", "section"),
    [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, None)],
)
def test_the_precision_is_the_plans(dtype: torch.dtype, section: str | None):
    found = config(dtype)
    assert {key for key in ("bf16", "fp16") if key in found} == {section} - {None}


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [
        ("adamw", "AdamW", None),
        ("adam", "Adam", None),
        ("sgd", "SGD", None),
        ("sgd-momentum", "SGD", 0.9),
        ("SGD_momentum", "SGD", 0.9),
    ],
)
def test_the_optimizer_is_the_plans(name: str, kind: str, momentum: float | None):
    found = ds_config(captured("mlp"), options(name), {})["optimizer"]
    assert found["type"] == kind
    assert found["params"].get("momentum") == momentum


def test_another_optimizer_brings_its_own_parameters():
    mine = {"type": "Lamb", "params": {"lr": 1.0}}
    assert config(optimizer=mine)["optimizer"] == mine


def test_sections_are_merged_entry_by_entry():
    found = config(zero_optimization={"stage": 1, "reduce_bucket_size": 5})
    assert found["zero_optimization"] == {"stage": 1, "reduce_bucket_size": 5}
    found = config(torch.bfloat16, bf16={"check_grad_overflow": True})
    assert found["bf16"] == {"enabled": True, "check_grad_overflow": True}


@pytest.mark.parametrize(
    ("dtype", "overrides", "message"),
    [
        (torch.float32, {"gradient_accumulation_steps": 4}, "plan is for 6"),
        (torch.float32, {"zero_optimization": {"stage": 2}}, "ZeRO stage 2"),
        (torch.float32, {"zero_optimization": True}, "not a dict"),
        (torch.float32, {"zero_optimization": {"stage": "1"}}, "stage is '1', which"),
        (torch.float32, {"zero_optimization": {"stage": None}}, "stage is None, which"),
        (torch.float32, {"zero_optimization": {"stage": True}}, "stage is True, which"),
        (torch.float32, {"zero_optimization": {"stage": 4}}, "stage is 4, which"),
        (torch.float32, {"bf16": {"enabled": True}}, "bf16 is enabled"),
        (torch.float32, {"fp16": {"enabled": True}}, "fp16 is enabled"),
        (torch.bfloat16, {"bf16": {"enabled": False}}, "bf16 is disabled"),
        (torch.bfloat16, {"bf16": False}, "not a dict"),
    ],
)
def test_what_contradicts_the_plan_is_refused(
    dtype: torch.dtype, overrides: dict[str, Any], message: str
):
    with pytest.raises(OptionError, match=message) as caught:
        config(dtype, **overrides)
    assert caught.value.hint


def test_overrides_are_not_changed():
    given = {"stage": 1}
    found = config(zero_optimization=given)
    found["zero_optimization"]["stage"] = 0
    assert given == {"stage": 1}


@pytest.mark.parametrize(
    ("dtype", "overrides", "message", "hint"),
    [
        (torch.float32, {"train_batch_size": 9}, "9, which is no multiple", "6"),
        (torch.float32, {"amp": {"enabled": True}}, "amp is enabled", "autocast"),
        (
            torch.float32,
            {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            "torch_autocast is enabled",
            "bfloat16",
        ),
        (
            torch.float32,
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            "ZeRO stage is 0: it is ignored",
            '"stage": 1',
        ),
        (
            torch.float32,
            {
                "zero_optimization": {
                    "stage": 1,
                    "offload_optimizer": {"device": "nvme"},
                }
            },
            "to 'nvme' needs ZeRO stage 3",
            '"cpu"',
        ),
        (
            torch.float32,
            {"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}},
            "offload_param to 'cpu' needs ZeRO stage 3",
            "states alone",
        ),
        (
            torch.bfloat16,
            {"data_types": {"grad_accum_dtype": "fp32"}},
            "'fp32' for a plan in torch.bfloat16",
            '"stage": 1',
        ),
        (
            torch.float32,
            {"pipeline": {"activation_checkpoint_interval": 1}},
            "recomputed twice",
            "checkpointing",
        ),
    ],
)
def test_what_deepspeed_would_ignore_or_refuse_late_is_refused(
    dtype: torch.dtype, overrides: dict[str, Any], message: str, hint: str
):
    with pytest.raises(OptionError, match=message) as caught:
        config(dtype, **overrides)
    assert hint in caught.value.hint


def test_batch_norm_does_not_train_with_parameters_cast_alone():
    graph = replace(captured("resnet"), dtype=torch.bfloat16, casts=True)
    with pytest.raises(OptionError, match=r"'stage1\.0\.norm1' \(9 in all\)") as caught:
        ds_config(graph, options(), {})
    assert "model.to(torch.bfloat16)" in caught.value.hint
    # In the model's own dtype there is nothing to refuse.
    assert "bf16" not in ds_config(captured("resnet"), options(), {})


def test_deepspeed_takes_torchs_optimizers_where_it_would_not_by_itself():
    offload = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    found = config(zero_optimization=offload)
    assert found["zero_force_ds_cpu_optimizer"] is False
    assert "zero_allow_untested_optimizer" not in found
    graph, zero = captured("mlp"), {"zero_optimization": {"stage": 1}}
    assert ds_config(graph, options("sgd"), zero)["zero_allow_untested_optimizer"]
    mine = config(zero_force_ds_cpu_optimizer=True, zero_optimization=offload)
    assert mine["zero_force_ds_cpu_optimizer"] is True


def test_zero_is_that_of_the_plan():
    graph = captured("mlp")
    plain = ds_config(graph, options(zero_stage=1), {})["zero_optimization"]
    assert plain["stage"] == 1
    assert plain["reduce_bucket_size"] == REDUCE_BUCKET
    assert "offload_optimizer" not in plain
    both = options(zero_stage=1, offload_optimizer=True)
    found = ds_config(graph, both, {})
    assert found["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert found["zero_force_ds_cpu_optimizer"] is False


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ({"stage": 0, "offload_optimizer": {"device": "none"}}, "counted for stage 1"),
        ({"offload_optimizer": {"device": "none"}}, "nothing is offloaded"),
    ],
)
def test_less_than_the_plan_counts_on_is_refused(zero, words):
    both = options(zero_stage=1, offload_optimizer=True)
    with pytest.raises(OptionError, match=words):
        ds_config(captured("mlp"), both, {"zero_optimization": zero})
