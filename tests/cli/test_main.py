"""Tests of partitioner.cli.commands: real targets, real plans, exact exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import partitioner
from partitioner.cli import main
from partitioner.targets import open_target

ROOT = Path(__file__).parents[2]

MODEL = """
import torch
from torch import nn

print("importing the model file")

def build_model():
    print("building the model")
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*blocks)

CALLS = []

class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        CALLS.append(1)  # outside the module, where no recording can see it
        return self.second(self.first(x) * len(CALLS))

example_inputs = torch.ones(3, 16)
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocks.py").write_text(MODEL)
    return "blocks.py"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    """A plan without the seconds that the solver happened to take."""
    provenance = {k: v for k, v in document["provenance"].items() if k != "solve_s"}
    return {**document, "provenance": provenance}


def test_inspect_prints_the_report(target: str) -> None:
    result = run("inspect", target, "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("Sequential: 2 stages, ")
    assert "Stage Modules Params FLOPs Time Memory Sent Ckpt" in lines
    assert any(line.startswith("bubble ") for line in lines)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_talk_goes_to_stderr(target: str) -> None:
    result = run("inspect", target, "--device", "cpu")
    assert "importing the model file" in result.stderr
    assert "building the model" in result.stderr
    assert "ing the model" not in result.stdout


def test_json_is_the_plan_and_nothing_else(target: str) -> None:
    options = ["--stages", "3", "--micro-batches", "5", "--device", "a100"]
    result = run("inspect", target, *options, "--checkpointing", "none", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    with open_target(target) as found:
        plan = partitioner.partition(
            found.model,
            3,
            example_inputs=found.example_inputs,
            micro_batches=5,
            device="a100",
            checkpointing="none",
        )
    expected = json.loads(json.dumps(plan.to_dict()))
    assert without_times(document) == without_times(expected)


def test_every_option_reaches_the_plan(target: str) -> None:
    options = {
        "--stages": "2",
        "--micro-batches": "3",
        "--device": "h100",
        "--memory-limit": "1GiB",
        "--optimizer": "sgd",
        "--checkpointing": "all",
        "--solver": "highs",
        "--gap": "0.125",
        "--time-limit": "17",
    }
    flags = [text for option in options.items() for text in option]
    result = run("inspect", target, *flags, "--dtype", "bfloat16", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    used = document["options"]
    assert used["stages"] == 2
    assert used["micro_batches"] == 3
    assert used["memory_limit_bytes"] == 2**30
    assert used["optimizer"] == "sgd"
    assert used["checkpointing"] == "all"
    assert used["solver"] == "highs"
    assert used["gap"] == 0.125
    assert used["time_limit_s"] == 17
    assert document["provenance"]["profile"] == "h100-80g"
    assert document["provenance"]["dtype"] == "bfloat16"


def test_a_cluster_reaches_the_plan(target: str) -> None:
    flags = ["--devices-per-node", "1", "--between-nodes", "100Gbit"]
    more = ["--within-node", "pcie4", "--replicas", "2"]
    result = run("inspect", target, "--device", "cpu", *flags, *more, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["options"]["cluster"] == {
        "devices_per_node": 1,
        "between_nodes": {"bytes_per_s": 12.5e9, "latency_s": 3e-5},
        "within_node": {"bytes_per_s": 32e9, "latency_s": 1e-5},
        "replicas": 2,
    }
    assert document["cluster"] == {"nodes": 4, "far_boundaries": [0]}


@pytest.mark.parametrize(
    "flags", [["--devices-per-node", "8"], ["--between-nodes", "ib-400"]]
)
def test_half_a_cluster_is_a_usage_error(target: str, flags: list[str]) -> None:
    result = run("inspect", target, "--device", "cpu", *flags)
    assert result.exit_code == 2
    assert "--between-nodes" in result.stderr


def test_zero_and_its_replicas_reach_the_plan(target: str) -> None:
    flags = ["--replicas", "4", "--zero-stage", "1", "--offload-optimizer"]
    result = run("inspect", target, "--device", "cpu", "--json", *flags)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    options = document["options"]
    assert (options["replicas"], options["zero_stage"]) == (4, 1)
    assert document["stages"][0]["memory"]["optimizer_bytes"] == 0

    refused = run("inspect", target, "--device", "cpu", "--zero-stage", "2")
    assert refused.exit_code == 2


def test_cuda_graphs_reach_the_plan(target: str) -> None:
    result = run("inspect", target, "--device", "cpu", "--json", "--cuda-graphs")
    assert json.loads(result.stdout)["options"]["cuda_graphs"] is True


def test_output_can_be_loaded_for_the_model(target: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    result = run("inspect", target, "--device", "cpu", "--json", "-o", str(path))
    assert result.exit_code == 0, result.output
    assert f"plan written to {path}" in result.stderr
    with open_target(target) as found:
        loaded = partitioner.Plan.load(path, found.model)
    assert json.loads(json.dumps(loaded.to_dict())) == json.loads(result.stdout)


def test_verify_passes(target: str) -> None:
    result = run("verify", target, "--stages", "2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith("ok: every difference is at most")


def test_verify_prints_json(target: str) -> None:
    result = run("verify", target, "--stages", "2", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert set(document["modes"]) == {"train", "eval"}


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_verify_fails_for_a_forward_that_counts_its_calls(
    target: str, flags: list[str]
) -> None:
    moody = f"{target}:Moody"
    result = run("verify", moody, "--stages", "2", "--device", "cpu", *flags)
    assert result.exit_code == 1, result.output
    if flags:
        assert json.loads(result.stdout)["ok"] is False
    else:
        assert "FAILED: a difference is above" in result.stdout


def test_too_many_stages_is_an_error_with_a_hint(target: str) -> None:
    result = run("inspect", target, "--stages", "500", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1
    assert "500" in errors[0]
    assert any(line.startswith("hint: ") for line in lines)


def test_missing_file_is_an_error(target: str) -> None:
    result = run("inspect", "nothing.py")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: there is no file nothing.py" in result.stderr
    assert f"hint: Python files in {Path.cwd()}: {target}" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["verify", "blocks.py"],
        ["inspect", "blocks.py", "--stages", "0"],
        ["inspect", "blocks.py", "--micro-batches", "-1"],
        ["inspect", "blocks.py", "--solver", "guess"],
        ["inspect", "blocks.py", "--checkpointing", "some"],
        ["inspect", "blocks.py", "--gap", "2"],
        ["inspect", "blocks.py", "--time-limit", "0"],
        ["inspect", "blocks.py", "-o", "absent/plan.json"],
        ["inspect", "blocks.py", "-o", "/dev/null"],
        ["inspect", "blocks.py", "-o", "."],
        ["inspect", "blocks.py", "--trace", "absent/trace.json"],
        ["inspect", "blocks.py", "--html", "absent/page.html"],
        ["inspect", "blocks.py", "--plan", "absent.json"],
        ["inspect", "blocks.py", "--unknown"],
        ["undo", "blocks.py"],
    ],
)
def test_usage_errors_exit_with_2(target: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr
    assert "importing the model file" not in result.stderr


def test_unwritable_output_is_an_error(target: str) -> None:
    # Nothing can be created in /proc, not even by root.
    result = run("inspect", target, "--device", "cpu", "-o", "/proc/plan.json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: the plan could not be written to /proc/plan.json" in result.stderr


def python(*arguments: str, cwd: Path, **environment: str) -> Any:
    """Run Python in a process of its own, with the repository importable."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_help_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from partitioner.cli import "
        "main; result = CliRunner().invoke(main, ['inspect', '--help']); "
        "assert result.exit_code == 0; print('torch' in sys.modules)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "False\n", done.stderr


def test_module_runs_as_a_program_without_colour(target: str) -> None:
    arguments = ["-m", "partitioner", "inspect", target, "--device", "cpu"]
    done = python(*arguments, cwd=Path.cwd(), NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Sequential: 2 stages, ")
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert "Traceback" not in done.stderr


def test_inspect_shows_what_else_was_asked_for(target: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    flags = ["--timeline", "--compare", "--explain", "--trace", str(trace)]
    result = run("inspect", target, "--device", "cpu", *flags)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.startswith("rank ")]
    assert [row.split()[1] for row in rows] == ["0", "1"]
    for title in ("Other splits of the same model", "What limits this plan"):
        assert title in lines
    assert "solving with 3 stages" in result.stderr
    assert "solving with" not in result.stdout
    assert f"trace written to {trace}" in result.stderr
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}


def test_a_page_is_written_beside_the_report(target: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    flags = ["--device", "cpu", "--json", "--explain", "--html", str(page)]
    result = run("inspect", target, *flags)
    assert result.exit_code == 0, result.output
    assert f"page written to {page}" in result.stderr
    document = json.loads(result.stdout)
    assert "explanation" in document
    assert document.keys().isdisjoint({"comparison", "events", "outline"})
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<h1>Sequential</h1>" in text
    assert document["provenance"]["fingerprint"][:16] in text


def test_a_stored_plan_is_reported_as_it_was_made(target: str, tmp_path: Path) -> None:
    stored, page = tmp_path / "plan.json", tmp_path / "page.html"
    made = run(
        "inspect", target, "--device", "a100", "--stages", "3", "-o", str(stored)
    )
    found = run("inspect", target, "--plan", str(stored), "--html", str(page))
    assert found.exit_code == 0, found.output
    assert found.stdout == made.stdout
    assert "3 stages" in page.read_text(encoding="utf-8")


def test_a_stored_plan_takes_no_options_of_planning(
    target: str, tmp_path: Path
) -> None:
    stored = tmp_path / "plan.json"
    stored.write_text("{}")
    flags = ["--stages", "3", "--device", "cpu"]
    result = run("inspect", target, "--plan", str(stored), *flags)
    assert result.exit_code == 2
    assert "--plan has its own --stages, --device: leave them out" in result.stderr
    assert "importing the model file" not in result.stderr


def test_a_stored_plan_of_another_model_is_refused(target: str, tmp_path: Path) -> None:
    stored = tmp_path / "plan.json"
    run("inspect", target, "--device", "cpu", "-o", str(stored))
    other = run("inspect", f"{target}:Moody", "--plan", str(stored))
    assert other.exit_code == 1
    assert "error: the plan was made for another model" in other.stderr


def test_json_holds_what_else_was_asked_for(target: str) -> None:
    flags = ["--timeline", "--compare", "--explain", "--json"]
    result = run("inspect", target, "--device", "cpu", *flags)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    splits = {split["name"]: split for split in document["comparison"]["splits"]}
    assert splits["this plan"]["simulated_s"] == document["simulation"]["step_s"]
    assert len(document["timeline"]["rows"]) == 2
    changes = [variant["change"] for variant in document["explanation"]["variants"]]
    assert changes == ["1 stage", "3 stages"]


def test_inspect_by_module_is_a_tree_down_to_a_depth(target: str) -> None:
    result = run("inspect", target, "--device", "cpu", "--by", "module", "--depth", "1")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "Module Stage Params FLOPs Forward Backward Saved Share" in lines
    blocks = [line.split()[:4] for line in lines if line.split()[1:2] == ["Sequential"]]
    assert blocks == [[str(i), "Sequential", str(i // 2), "272"] for i in range(4)]
    deeper = run("inspect", target, "--device", "cpu", "--by", "module")
    assert sum(" Linear " in line for line in deeper.stdout.splitlines()) == 4


def test_a_breakdown_is_in_the_json_beside_the_plan(target: str) -> None:
    options = ["--device", "cpu", "--by", "operator", "--sort", "flops", "--json"]
    document = json.loads(run("inspect", target, *options).stdout)
    assert document["kind"] == "fx-partitioner plan"
    found = document["breakdown"]
    assert (found["by"], found["sort"]) == ("operator", "flops")
    first, second = found["rows"]
    assert (first["name"], first["calls"]) == ("Linear", 4)
    assert first["forward_flops"] == 4 * 2 * 3 * 16 * 16
    assert second["name"] == "ReLU"


@pytest.mark.parametrize(
    "options", [["--sort", "flops"], ["--depth", "2"], ["--by", "node", "--depth", "2"]]
)
def test_options_of_a_breakdown_that_is_not_asked_for_are_refused(
    target: str, options: list[str]
) -> None:
    result = run("inspect", target, "--device", "cpu", *options)
    assert result.exit_code == 2
    assert "--sort needs --by" in result.stderr


def test_constraints_reach_the_plan(target: str) -> None:
    result = run(
        "inspect", target, "--device", "cpu", "--json",
        "--pin", "1=1", "--keep-together", "2,3", "--no-cut-inside", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    units = json.loads(result.stdout)["units"]
    assert {stage for name, stage in units.items() if name.startswith("1.")} == {1}


@pytest.mark.parametrize("pin", ["head", "head=last", "=1"])
def test_a_pin_without_a_stage_is_a_usage_error(target: str, pin: str) -> None:
    result = run("inspect", target, "--pin", pin)
    assert result.exit_code == 2
    assert "is not PATTERN=STAGE" in result.stderr
