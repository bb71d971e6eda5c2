"""A configuration as a tutorial published it: every fault is found and mended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from torch import nn

from partitioner import OptionError, partition
from partitioner.doctor import Examination, examine, read_config, read_machine
from tests.distributed.launch import launch

TUTORIAL = read_config(Path(__file__).parent / "data" / "tutorial.json").config

STEPS = 3


def found(**known: Any) -> Examination:
    return examine(TUTORIAL, **known)


def places(examination: Examination) -> set[tuple[str, str]]:
    return {(finding.code, finding.where) for finding in examination.findings}


def test_every_fault_is_found():
    examination = found()
    assert not examination.ok
    assert places(examination) >= {
        ("zero-stage", "zero_optimization.stage"),
        ("zero-overlap", "zero_optimization.overlap_comm"),
        ("pipeline-key", "pipeline.activation_checkpointing"),
        ("pipeline-key", "pipeline.partition_method"),
        ("pipeline-key", "pipeline.pipeline_stages"),
        ("scheduler-total-steps", "scheduler.params.total_num_steps"),
        ("batch-implicit", "train_micro_batch_size_per_gpu"),
        ("bubble", "gradient_accumulation_steps"),
        ("clipping-default", "gradient_clipping"),
        ("fp16-range", "fp16"),
        ("adam-compiles", "optimizer.type"),
    }


def test_nothing_is_found_where_nothing_is_wrong():
    sections = {finding.where.split(".")[0] for finding in found().findings}
    assert not {"wall_clock_breakdown", "train_batch_size"} & sections


def test_each_key_of_the_block_says_what_it_should_be():
    changes = {f.where: f.change for f in found().findings}
    assert "interval" in changes["pipeline.activation_checkpointing"]
    assert "num_stages=" in changes["pipeline.pipeline_stages"]
    assert "partition_method=" in changes["pipeline.partition_method"]


def test_deepspeed_takes_the_corrected_copy():
    fixed = found().fixed
    read = DeepSpeedConfig(fixed)
    assert read.zero_optimization_stage == 1
    assert read.train_micro_batch_size_per_gpu == 4096 // 8
    assert examine(fixed).ok


def test_what_was_right_is_kept():
    fixed = found().fixed
    for key in ("train_batch_size", "gradient_accumulation_steps", "fp16"):
        assert fixed[key] == TUTORIAL[key]
    assert fixed["optimizer"] == TUTORIAL["optimizer"]
    assert fixed["scheduler"]["params"] == TUTORIAL["scheduler"]["params"]
    assert fixed["zero_optimization"]["contiguous_gradients"] is True


class Regression(nn.Sequential):
    """A model small enough for a batch of any size."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 1))


def train(config: dict[str, Any], samples: int, folder: Path) -> list[float]:
    """Train by a configuration; return the losses, on this rank."""
    os.chdir(folder)  # its logs go to ./logs
    torch.manual_seed(0)
    inputs = torch.randn(samples, 8)
    model = Regression()
    plan = partition(model, 2, example_inputs=inputs, micro_batches=8, device="cpu")
    engine, *_ = plan.initialize(nn.functional.mse_loss, config=config)
    targets = inputs.sum(dim=1, keepdim=True)
    batches = [(inputs, targets)] * 8
    return [float(engine.train_batch(iter(batches))) for _ in range(STEPS)]


@pytest.mark.distributed
@pytest.mark.parametrize("samples", [2, 512])
def test_the_corrected_copy_trains_by_a_plan(samples: int, tmp_path: Path):
    inputs = torch.zeros(samples, 8)
    plan = partition(
        Regression(), 2, example_inputs=inputs, micro_batches=8, device="cpu"
    )
    # Compilers differ between machines; the copy must train without one.
    machine = replace(read_machine(), compiler=None)
    examination = found(plan=plan.to_dict(), processes=2, machine=machine)
    assert "plan-precision" in {finding.code for finding in examination.findings}
    first, second = launch(2, train, examination.fixed, samples, tmp_path)
    assert list((tmp_path / "logs").iterdir())
    assert first == second
    assert len(first) == STEPS
    assert first[2] < first[1] < first[0]


def test_the_published_one_does_not():
    inputs = torch.zeros(2, 8)
    plan = partition(
        Regression(), 2, example_inputs=inputs, micro_batches=8, device="cpu"
    )
    with pytest.raises(OptionError, match="fp16 is enabled"):
        plan.ds_config(**TUTORIAL)
