"""Every command that takes TARGET takes a Hugging Face folder, and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import AutoConfig, AutoModelForCausalLM

import partitioner
from partitioner.cli import main
from tests.targets.hugging_face import write

SIZES = ["--seq-len", "8"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "gpt2", "GPT2LMHeadModel").name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def data(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_sizes_reach_the_plan_and_what_was_assumed_its_report(folder: str) -> None:
    flags = ["--device", "cpu", "--batch", "3", *SIZES]
    plan = data("inspect", folder, *flags)
    shapes = {each["name"]: each["shape"] for each in plan["inputs"]}
    assert shapes == {"input_ids": [3, 8], "labels": [3, 8]}
    report = run("inspect", folder, *flags)
    assert max(map(len, report.stdout.splitlines())) <= 80
    text = " ".join(report.stdout.split())
    assert "assumptions model: GPT2LMHeadModel, from the architectures in" in text
    assert "loss: the model's own, from labels" in text


def test_the_class_can_be_chosen(folder: str) -> None:
    flags = ["--device", "cpu", *SIZES, "--hf-class", "AutoModel"]
    provenance = data("inspect", folder, *flags)["provenance"]
    assert provenance["model_class"].endswith(".GPT2Model")


def test_the_plan_is_that_of_the_model_which_a_user_builds(folder: str) -> None:
    result = run("inspect", folder, "--device", "cpu", *SIZES, "-o", "plan.json")
    assert result.exit_code == 0, result.output
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    plan = partitioner.Plan.load("plan.json", model)
    assert plan.verify().ok


def test_verify_runs_it_with_random_weights(folder: str) -> None:
    flags = ["--stages", "2", "--device", "cpu", *SIZES]
    assert data("verify", folder, *flags)["ok"] is True


def test_measure_and_replan_with_what_it_measured(folder: str) -> None:
    flags = ["--device", "cpu", *SIZES]
    result = run("measure", folder, *flags, "-o", "times.json")
    assert result.exit_code == 0, result.output
    plan = data("inspect", folder, *SIZES, "--measurements", "times.json")
    assert plan["provenance"]["prices"].startswith("measured")


def test_tune_takes_the_samples_of_a_micro_batch(folder: str) -> None:
    flags = ["--gpus", "2", "--batch", "16", "--device", "h100"]
    tuning = data("tune", folder, *flags, *SIZES, "--micro-batch", "4")
    assert tuning["micro_batch_samples"] == 4


@pytest.mark.distributed
def test_tune_runs_it_on_its_example_inputs(folder: str) -> None:
    flags = ["--gpus", "2", "--batch", "8", "--device", "cpu", "--measure", "1"]
    rows = data("tune", folder, *flags, *SIZES, "--micro-batch", "2")["rows"]
    assert [row["measured_reason"] for row in rows if row["measured_reason"]] == []
    assert len([row for row in rows if row["measured_step_s"]]) == 1


def test_other_targets_have_no_such_options(folder: str) -> None:
    Path("net.py").write_text("from torch import nn\nmodel = nn.Linear(2, 2)")
    result = run("inspect", "net.py", *SIZES)
    assert result.exit_code == 1
    assert "net.py is Python code, and no Hugging Face model: --seq-len" in (
        result.stderr
    )


def test_a_size_is_a_positive_number(folder: str) -> None:
    assert run("inspect", folder, "--seq-len", "0").exit_code == 2
