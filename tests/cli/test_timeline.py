"""``partitioner trace`` and ``partitioner replan``, from files to reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from partitioner import Plan
from partitioner.cli import main
from partitioner.report.units import format_seconds
from tests.timeline.test_replan import model, planned, recorded, slowed


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    plan = planned()
    plan.save(tmp_path / "plan.json")
    trace = recorded(plan, tmp_path / "trace.json", steps=2)
    slowed(trace, 2, 2.0)
    (tmp_path / "model.py").write_text(
        "import torch\nfrom tests.timeline.test_replan import model\n"
        "example_inputs = torch.zeros(2, 8)\n"
    )
    names = ("plan.json", "trace.json", "model.py", "new.json")
    return {name.partition(".")[0]: tmp_path / name for name in names}


def test_trace_reports_stages_bubbles_and_advice(files: dict[str, Path]):
    result = run("trace", files["trace"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "2 steps of 16 micro-batches on 4 ranks"
    (slowest,) = [line for line in lines if line.startswith("slowest")]
    assert "stage 2: 2.00 times the mean of the others" in slowest
    (row,) = [line.split() for line in lines if line.strip().startswith("2 *")]
    assert "+100" in row
    assert any(line.startswith("advice") for line in lines)


def test_trace_prints_json(files: dict[str, Path]):
    found = json.loads(run("trace", files["trace"], "--json").stdout)
    assert found["schema_version"] == 1
    assert found["slowest_stage"] == 2
    assert found["slowest_to_others"] == pytest.approx(2.0)
    assert len(found["stages"]) == len(found["ranks"]) == 4


BUSY = {"samples": 40, "mean": 0.9, "p10": 0.7, "p50": 0.95, "p90": 1.0}
IDLE = {"samples": 40, "mean": 0.5, "p10": 0.25, "p50": 0.5, "p90": 0.75}
SILENT = {"not_sampled": "the stages run on a cpu"}


def gpu_lines(path: Path, use: list[dict[str, Any]]) -> str:
    content = json.loads(path.read_text())
    content["otherData"]["gpu_use"] = use
    path.write_text(json.dumps(content))
    result = run("trace", path)
    assert result.exit_code == 0, result.output
    *_, gpus = result.stdout.partition("GPU use")
    return " ".join(gpus.split())


def test_trace_says_how_busy_gpus_were_or_why_nobody_knows(files: dict[str, Path]):
    said = gpu_lines(files["trace"], [BUSY, IDLE, BUSY, BUSY])
    assert "80.0 % of the time; least on rank 1: 50.0 %, 25.0 % to 75.0 %" in said
    assert "not sampled" not in said
    said = gpu_lines(files["trace"], [SILENT] * 4)
    assert said.startswith("not sampled: the stages run on a cpu")
    said = gpu_lines(files["trace"], [BUSY, SILENT, BUSY, SILENT])
    assert said.startswith("90.0 % of the time; least on rank 0")
    assert "not sampled on ranks [1, 3]: the stages" in said
    found = json.loads(run("trace", files["trace"], "--json").stdout)
    assert found["gpu_use"] == [BUSY, SILENT, BUSY, SILENT]


def test_a_trace_from_before_gpus_were_sampled_says_nothing(files: dict[str, Path]):
    assert gpu_lines(files["trace"], []) == ""


def replan(files: dict[str, Path], *more: str) -> Result:
    return run(
        "replan",
        f"{files['model']}:model",
        *("--plan", files["plan"], "--from", files["trace"], "-o", files["new"]),
        *more,
    )


def test_replan_writes_a_plan_that_loads(files: dict[str, Path]):
    result = replan(files)
    assert result.exit_code == 0, result.output
    assert "times as fast." in " ".join(result.stdout.split())
    before, after = (Plan.load(files[name], model()) for name in ("plan", "new"))
    counts = [plan.assignment.stage_of.count(2) for plan in (before, after)]
    assert counts[1] < counts[0]


def test_replan_writes_a_page_of_the_new_plan(files: dict[str, Path]):
    page = files["new"].with_suffix(".html")
    result = replan(files, "--html", str(page))
    assert result.exit_code == 0, result.output
    assert f"page written to {page}" in result.stderr
    made = Plan.load(files["new"], model())
    text = page.read_text(encoding="utf-8")
    assert format_seconds(made.simulation.step_s) in text


def test_replan_prints_json(files: dict[str, Path]):
    found: dict[str, Any] = json.loads(replan(files, "--json").stdout)
    assert found["kind"] == "fx-partitioner plan"
    assert found["simulation"]["step_s"] < found["before"]["step_s"]


def test_what_is_no_trace_is_an_error_with_a_hint(files: dict[str, Path]):
    result = run("trace", files["plan"])
    assert result.exit_code == 1
    assert "is no trace of a run" in result.stderr
    assert "hint: record one" in result.stderr
    files["trace"].write_text("{}")
    result = replan(files)
    assert result.exit_code == 1
    assert "is no trace of a run" in result.stderr
    assert not files["new"].exists()
