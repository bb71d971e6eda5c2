"""What DeepSpeed reads is asked of DeepSpeed itself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.utils import logger

from partitioner.doctor.reading import (
    Reading,
    known_keys,
    parsed,
    read_sections,
    read_whole,
)
from partitioner.doctor.rules.pipeline import READ


def read(**entry: Any) -> Reading:
    (reading,) = read_sections(entry).values()
    return reading


@pytest.mark.parametrize(
    "key",
    [
        "train_batch_size",
        "optimizer",
        "scheduler",
        "gradient_clipping",
        "zero_optimization",
        "pipeline",
        "wandb",
        "vocabulary_size",
        "sequence_parallel_size",
    ],
)
def test_keys_that_deepspeed_documents_are_known(key: str):
    assert key in known_keys()


@pytest.mark.parametrize("key", ["zero_optimisation", "seed", "num_epochs", "stage"])
def test_keys_that_it_does_not_have_are_not(key: str):
    assert key not in known_keys()
    assert not read(**{key: 1}).known


@pytest.mark.parametrize(
    ("section", "right"),
    [
        ("activation_checkpointing", "number_checkpoints"),
        ("flops_profiler", "profile_step"),
        ("data_types", "grad_accum_dtype"),
        ("checkpoint", "tag_validation"),
        ("optimizer", "legacy_fusion"),
        ("torch_autocast", "enabled"),
        ("aio", "block_size"),
    ],
)
def test_keys_of_plain_sections_are_told_apart(section: str, right: str):
    values: dict[str, Any] = {"tag_validation": "WARN", "grad_accum_dtype": "fp32"}
    reading = read(**{section: {right: values.get(right, 1), "nonsense": 1}})
    assert reading.unread == ("nonsense",)
    assert reading.refusals == ()


@pytest.mark.parametrize(
    "section",
    ["zero_optimization", "fp16", "bf16", "tensorboard", "wandb", "comms_logger"],
)
def test_sections_with_a_model_refuse_other_keys(section: str):
    reading = read(**{section: {"enabled": False, "nonsense": 1}})
    assert (section, "nonsense") in {refusal.path for refusal in reading.refusals}
    assert {refusal.kind for refusal in reading.refusals} == {"key"}
    assert reading.unread == ()


def test_sections_with_a_model_take_their_own_keys():
    entries = {
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
        "tensorboard": {"enabled": True, "job_name": "x"},
        "fp16": {"enabled": True, "loss_scale_window": 5},
        "compile": {"deepcompile": False},
        "timers": {"throughput": {"enabled": True}},
        "datastates_ckpt": {"host_cache_size": 16},
    }
    for reading in read_sections(entries).values():
        assert reading == Reading(known=True, unread=(), refusals=(), warnings=())


def test_a_value_is_refused_where_it_stands():
    zero = {"stage": 1, "offload_optimizer": {"device": "moon"}}
    (refusal,) = read(zero_optimization=zero).refusals
    assert refusal.path == ("zero_optimization", "offload_optimizer", "device")
    assert refusal.kind == "value"


def test_a_feature_that_is_gone_is_no_wrong_value():
    (refusal,) = read(amp={"enabled": True}).refusals
    assert refusal.kind == "gone"


def test_entries_that_need_others_are_read_alone():
    fp16 = {"enabled": True, "fp16_master_weights_and_grads": True}
    assert read(fp16=fp16).refusals == ()
    whole = {"train_batch_size": 1, "fp16": fp16}
    assert "Zero" in read_whole(whole) or "ZeRO" in read_whole(whole)
    assert not read_whole({**whole, "zero_optimization": {"stage": 1}})


def test_reading_changes_nothing():
    of: dict[str, Any] = {
        "train_batch_size": 1,
        "data_efficiency": {"enabled": True, "data_sampling": {"enabled": True}},
        "zero_optimization": {"stage": 1},
    }
    before = repr(of)
    read_sections(of)
    read_whole(of)
    assert repr(of) == before


def test_deepspeed_s_log_is_as_before():
    handlers, propagate = list(logger.handlers), logger.propagate
    read(zero_optimization={"stage": 1, "cpu_offload": False})
    assert logger.handlers == handlers
    assert logger.propagate == propagate
    assert logger.isEnabledFor(logging.WARNING)


def test_the_engine_reads_those_keys_of_the_pipeline_block_alone():
    """Whatever the engine's constructor looks up in the block is in the list."""
    block = DeepSpeedConfig(
        {"train_batch_size": 1, "pipeline": {"use_reentrant": None}}
    ).pipeline
    names = PipelineEngine.__init__.__code__.co_consts
    looked_up = {name for name in names if isinstance(name, str) and name in block}
    assert looked_up == set(READ)


def test_words_for_numbers_and_truth_are_taken_as_deepspeed_takes_them():
    found = parsed(
        {
            "zero_optimization": {"stage": "2", "offload_optimizer": {"device": "cpu"}},
            "fp16": {"enabled": "no", "loss_scale": "8"},
            "bfloat16": {"enabled": "yes"},
        }
    )
    assert found["zero_optimization"] == {
        "stage": 2,
        "offload_optimizer": {"device": "cpu"},
    }
    assert found["fp16"] == {"enabled": False, "loss_scale": 8.0}
    assert found["bf16"] == {"enabled": True}


def test_a_section_that_is_refused_stays_as_it_is():
    wrong = {"zero_optimization": {"stage": 9, "nonsense": 1}, "fp16": 3}
    assert parsed(wrong) == wrong
