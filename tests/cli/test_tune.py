"""``partitioner tune``, from a file to a table and to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deepspeed.runtime.config import DeepSpeedConfig

from partitioner import Plan
from partitioner.cli import main
from tests.tuning.models import model


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text("from tests.tuning.models import example_inputs, model\n")
    return path


def tune(target: Path, *more: str | Path) -> Result:
    line = ["tune", target, "--gpus", "4", "--batch", "64", "--device", "h100", *more]
    return CliRunner().invoke(main, [str(word) for word in line])


def test_the_table_fits_80_columns(target: Path):
    result = tune(target)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Sequential: 64 samples a step, in micro-batches of 2,")
    assert any(line.strip().startswith("2 stages × 2, dualpipev") for line in lines)
    assert lines[-1].startswith("Launch: deepspeed --num_gpus")
    assert "planning 4 stages" in result.stderr


def test_json_is_alone_on_stdout(target: Path):
    found = json.loads(tune(target, "--json", "--memory", "80GiB").stdout)
    assert found["schema_version"] == 1
    assert found["kind"] == "fx-partitioner tuning"
    assert found["memory_limit_bytes"] == 80 * 2**30
    assert len(found["rows"]) == 6
    fastest = min(row["step_s"] for row in found["rows"])
    assert found["rows"][found["best"]]["step_s"] == fastest


def test_the_best_is_written_for_deepspeed(target: Path, tmp_path: Path):
    folder = tmp_path / "out"
    result = tune(target, "-o", folder)
    assert result.exit_code == 0, result.output
    assert str(folder / "plan.json") in result.stderr
    plan = Plan.load(folder / "plan.json", model())
    config = json.loads((folder / "ds_config.json").read_text())
    assert config == plan.ds_config()
    read = DeepSpeedConfig(config)
    assert read.gradient_accumulation_steps == plan.options.micro_batches
    assert read.train_micro_batch_size_per_gpu == 2


def test_it_fails_where_nothing_fits(target: Path, tmp_path: Path):
    result = tune(target, "--memory", "1KiB", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "No layout fits." in result.stdout
    assert not (tmp_path / "out").exists()


def test_nodes_need_a_link(target: Path):
    result = tune(target, "--nodes", "2")
    assert result.exit_code == 1
    assert "error: 2 nodes, and no link between them" in result.stderr
    assert tune(target, "--nodes", "2", "--between-nodes", "ib-400").exit_code == 0
