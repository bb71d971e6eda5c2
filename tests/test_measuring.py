"""From timings of a model's parts to a plan that stands on them."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from partitioner import Measurements, Plan, measure_model, partition
from partitioner.cli import main

TARGET = """
import torch
from torch import nn
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)))
example_inputs = torch.randn(4, 16)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(TARGET)
    return str(path)


def run(*arguments: str):
    return CliRunner().invoke(main, [*map(str, arguments)])


def small() -> nn.Sequential:
    layers = (nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4))
    return nn.Sequential(*layers)


def test_a_plan_stands_on_timings_taken_elsewhere(tmp_path):
    batch = torch.randn(4, 16)
    measure_model(small(), example_inputs=batch, device="cpu").save(tmp_path / "t.json")
    plan = partition(
        small(), stages=2, example_inputs=batch, measurements=tmp_path / "t.json"
    )
    assert plan.costed.measured_share == pytest.approx(1.0)
    prices = plan.to_dict()["provenance"]["prices"]
    assert prices.startswith("measured on CPU")
    assert prices.endswith("100% of the time")


def test_measuring_here_needs_one_word(tmp_path):
    plan = partition(
        small(), stages=2, example_inputs=torch.randn(4, 16), device="measure"
    )
    assert plan.costed.measurements is not None
    assert list((tmp_path / "cache").rglob("*.json"))


def test_a_plan_file_holds_the_timings_it_stands_on(tmp_path):
    model = small()
    plan = partition(
        model, stages=2, example_inputs=torch.randn(4, 16), device="measure"
    )
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json", model)
    assert again.costed.measurements == plan.costed.measurements
    assert again.score == plan.score


def test_measure_writes_what_inspect_reads(target, tmp_path):
    timings = tmp_path / "timings.json"
    measured = run("measure", target, "-o", timings)
    assert measured.exit_code == 0, measured.output
    assert "layers timed on CPU" in measured.stderr
    shown = run("inspect", target, "--measurements", timings, "--json")
    assert shown.exit_code == 0, shown.output
    prices = json.loads(shown.stdout)["provenance"]["prices"]
    assert prices.startswith(f"measured on {Measurements.load(timings).device_name}")


def test_measure_writes_a_profile_that_inspect_reads(target, tmp_path):
    profile = tmp_path / "mine.json"
    assert run("measure", "--profile", profile).exit_code == 0
    shown = run("inspect", target, "--device", profile)
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("arguments", [[], ["model.py"], ["-o", "t.json"]])
def test_half_a_command_is_refused(arguments):
    result = run("measure", *arguments)
    assert result.exit_code == 2
    assert "give TARGET with -o FILE" in result.stderr
