"""Every layout of equal layers next to what paper and pencil give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deepspeed.runtime.config import DeepSpeedConfig

from partitioner import (
    InfeasibleError,
    OptionError,
    PartitionerError,
    Plan,
)
from partitioner.capture import capture
from partitioner.report.tuning import tuning_text
from partitioner.tuning import Row, Tuning
from tests.tuning.models import (
    PARAMETER_BYTES,
    SLOW,
    STEP_OF_ONE_S,
    model,
    tuned,
)

EXACT = pytest.approx


def row(tuning: Tuning, name: str) -> Row:
    (found,) = [row for row in tuning.rows if row.layout.name == name]
    return found


@pytest.fixture(scope="module")
def free() -> Tuning:
    """Four GPUs, 32 micro-batches, links that take no time."""
    return tuned()


def test_one_gpu_takes_all_micro_batches(free: Tuning):
    one = row(free, "1 GPU")
    assert one.micro_batches == 32
    assert one.step_s == EXACT(32 * STEP_OF_ONE_S)
    assert free.one_gpu_step_s == one.step_s
    assert free.efficiency(one) == EXACT(1.0)
    assert free.samples_per_s(one) == EXACT(64 / (32 * STEP_OF_ONE_S))


def test_over_free_links_replicas_lose_nothing(free: Tuning):
    beside = row(free, "data parallel × 4")
    assert beside.micro_batches == 8
    assert free.efficiency(beside) == EXACT(1.0)
    assert free.best is beside


@pytest.mark.parametrize(("stages", "replicas"), [(2, 2), (4, 1)])
def test_a_pipeline_of_equal_stages_loses_its_bubble(
    free: Tuning, stages: int, replicas: int
):
    name = f"{stages} stages" + (f" × {replicas}" if replicas > 1 else "")
    found = row(free, name)
    count = 32 // replicas
    assert found.micro_batches == count
    assert found.plan is not None
    bubble = (stages - 1) / (count + stages - 1)
    assert found.plan.simulation.bubble_share == EXACT(bubble, rel=1e-4)
    assert free.efficiency(found) == EXACT(1 - bubble, rel=1e-4)


def test_dualpipev_has_two_stages_on_each_gpu(free: Tuning):
    found = row(free, "2 stages × 2, dualpipev")
    assert found.plan is not None
    assert found.plan.problem.stages == 4
    assert found.step_s is not None
    assert found.step_s < (row(free, "2 stages × 2").step_s or 0)


def test_sums_over_replicas_are_part_of_the_step():
    found = row(tuned(SLOW, gpus=2), "data parallel × 2")
    # A ring's sum is 2 (R - 1) / R of the gradients; the gather is half of that.
    sums_s = 3 * 1 / 2 * PARAMETER_BYTES / SLOW.bytes_per_s
    assert found.replica_sums_s == EXACT(sums_s)
    assert found.step_s == EXACT(16 * STEP_OF_ONE_S + sums_s)


def test_between_nodes_the_sums_take_that_link():
    tuning = tuned(gpus=4, nodes=2, between_nodes=SLOW)
    whole = row(tuning, "data parallel × 4")
    # Two GPUs in each node: two links out of it.
    assert whole.replica_sums_s == EXACT(3 * 3 / 4 * PARAMETER_BYTES / 2e6)
    # The two replicas of each stage stand on one node.
    assert row(tuning, "2 stages × 2").replica_sums_s < 1e-9
    assert tuning.best is not None
    assert tuning.best.layout.stages == 2
    assert tuning.launch == (
        "deepspeed --hostfile hostfile --num_nodes 2 --num_gpus 2 train.py"
    )


def test_a_link_inside_the_node_takes_the_place_of_the_device_s():
    tuning = tuned(gpus=2, within_node=SLOW)
    assert row(tuning, "data parallel × 2").replica_sums_s == EXACT(
        1.5 * PARAMETER_BYTES / 1e6
    )


def test_a_batch_that_cannot_be_shared_out_is_named():
    tuning = tuned(gpus=4, batch=4)
    beside = row(tuning, "data parallel × 4")
    assert (beside.plan, beside.micro_batches) == (None, None)
    assert beside.reason.startswith("4 samples cannot be shared by 4 replicas")
    assert (
        "at least 8 micro-batches, not 2" in row(tuning, "4 stages, dualpipev").reason
    )
    assert row(tuning, "4 stages").plan is not None


def test_more_stages_than_layers_are_named():
    tuning = tuned(gpus=9, batch=9 * 2)
    found = row(tuning, "9 stages")
    assert found.plan is None
    assert "at most 8" in found.reason


def test_one_gpu_that_does_not_fit_says_what_it_needs_and_what_would_fit():
    wide = row(tuned(gpus=2), "1 GPU").memory_bytes
    half = row(tuned(gpus=2), "2 stages").memory_bytes
    assert wide is not None
    assert half is not None
    tuning = tuned(gpus=2, memory_limit=(wide + half) // 2, checkpointing="none")
    one = row(tuning, "1 GPU")
    assert one.plan is None
    assert one.memory_bytes == wide
    assert one.reason.startswith("stage 0 needs")
    assert "2 stages would fit the limit as it is" in one.advice
    # Efficiency is still against a GPU that had the room.
    assert tuning.one_gpu_step_s == EXACT(32 * STEP_OF_ONE_S)
    assert tuning.best is not None
    assert tuning.best.layout.stages == 2


def test_where_nothing_fits_there_is_no_best(tmp_path: Path):
    tuning = tuned(gpus=2, memory_limit=100)
    assert tuning.best is None
    assert tuning.launch is None
    assert all(one.reason for one in tuning.rows)
    with pytest.raises(InfeasibleError, match="no layout fits"):
        tuning.save(tmp_path)


def test_the_best_is_written_and_loads(tmp_path: Path):
    tuning = tuned(gpus=4, nodes=2, between_nodes=SLOW)
    assert tuning.best is not None
    assert tuning.best.plan is not None
    tuning.save(tmp_path / "new" / "folder")
    place = tmp_path / "new" / "folder"
    plan = Plan.load(place / "plan.json", model())
    assert plan.assignment.stage_of == tuning.best.plan.assignment.stage_of
    assert plan.options == tuning.best.plan.options
    written = json.loads((place / "ds_config.json").read_text())
    assert written == plan.ds_config()
    config = DeepSpeedConfig(written)
    assert config.gradient_accumulation_steps == tuning.best.micro_batches
    assert config.zero_config.stage == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PartitionerError, match="cannot be made"):
        tuned(gpus=1).save(tmp_path / "file")


def test_one_gpu_alone_is_its_own_best():
    tuning = tuned(gpus=1)
    assert [one.layout.name for one in tuning.rows] == ["1 GPU"]
    assert tuning.launch == "deepspeed --num_gpus 1 train.py"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 63}, "63 samples cannot be shared"),
        ({"nodes": 0}, "nodes is 0"),
        ({"nodes": 3}, "4 GPUs cannot stand on 3 nodes"),
        ({"nodes": 2}, "2 nodes, and no link between them"),
        ({"nodes": 2, "between_nodes": "string"}, "link 'string' is not known"),
        ({"optimizer": "lamb"}, "optimizer 'lamb' is not known"),
    ],
)
def test_wrong_arguments_are_told(options: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        tuned(**options)


def test_the_model_is_recorded_once():
    told: list[str] = []
    with mock.patch("partitioner.api.capture", wraps=capture) as record:
        tuning = tuned(progress=told.append)
    record.assert_called_once()
    assert told == [f"planning {one.layout.name}" for one in tuning.rows]


def test_the_text_is_the_report_of_its_dictionary(free: Tuning):
    assert "Best: data parallel × 4, 4.00 times one GPU." in str(free)
    assert str(free) == tuning_text(free.to_dict())
