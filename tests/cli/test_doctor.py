"""Tests of partitioner.cli.doctor: real files, exact exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partitioner import partition
from partitioner.cli import main
from tests.doctor.cases import CLEAN, config
from tests.models import MODELS


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    wrong = config(zero_optimization={"stage": 2})
    text = json.dumps(wrong, indent=1).replace("{", "{ // a comment", 1)
    Path("wrong.json").write_text(text)
    Path("right.json").write_text(json.dumps(CLEAN))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_an_error_exits_with_1_and_is_explained():
    result = run("wrong.json", "--stages", "2")
    assert result.exit_code == 1, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "error zero-stage: zero_optimization.stage"
    assert lines[2] == "change use ZeRO stage 0 or 1 [--fix]"
    assert lines[-1].startswith("1 error, 0 warnings, 0 notes (DeepSpeed 0.")
    assert lines[-1].endswith("; --fix mends 1")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not Path("wrong.fixed.json").exists()


def test_no_error_exits_with_0():
    result = run("right.json", "--stages", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("0 errors, 0 warnings, 0 notes")


def test_json_has_a_version_and_every_finding():
    result = run("wrong.json", "--stages", "2", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["kind"] == "fx-partitioner doctor"
    assert document["ok"] is False
    assert document["machine"] is None
    assert document["counts"] == {"error": 1, "warning": 0, "info": 0}
    (finding,) = document["findings"]
    assert set(finding) == {"code", "severity", "where", "why", "change", "edits"}
    assert finding["edits"] == [{"path": "zero_optimization.stage", "value": 1}]
    assert document["edits"] == finding["edits"]


def test_fix_writes_a_copy_beside_the_file():
    before = Path("wrong.json").read_text()
    result = run("wrong.json", "--stages", "2", "--fix")
    assert result.exit_code == 1
    assert "corrected copy written to wrong.fixed.json (1 changes)" in result.stderr
    assert Path("wrong.json").read_text() == before
    fixed = json.loads(Path("wrong.fixed.json").read_text())
    assert fixed == config(zero_optimization={"stage": 1})
    assert run("wrong.fixed.json", "--stages", "2").exit_code == 0


def test_fix_writes_where_it_is_told():
    run("wrong.json", "--fix", "-o", "other.json")
    assert json.loads(Path("other.json").read_text())["zero_optimization"] == {
        "stage": 1
    }


def test_a_plan_s_numbers_are_compared():
    entry = MODELS["mlp"]
    plan = partition(entry.model(), 2, example_inputs=entry.example(), device="cpu")
    plan.save("plan.json")
    result = run("right.json", "--plan", "plan.json", "--json")
    document = json.loads(result.stdout)
    assert "plan-micro-batches" in {f["code"] for f in document["findings"]}
    assert "memory" in {f["code"] for f in document["findings"]}


def test_the_machine_is_read_only_when_asked():
    document = json.loads(run("right.json", "--env", "--json").stdout)
    facts = document["machine"]
    assert facts["cores"]
    assert all(facts[name] is None for name in facts["unknown"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["absent.json"], 2, "does not exist"),
        ([], 2, "Missing argument"),
        (["right.json", "-o", "x.json"], 2, "-o is where --fix writes"),
        (["right.json", "--stages", "0"], 2, "--stages"),
        (["right.json", "--plan", "wrong.json"], 1, "error: plan file wrong.json is"),
        (["right.json", "--plan", "right.json"], 1, "error: right.json is no plan"),
    ],
)
def test_usage_and_files_that_are_something_else(
    arguments: list[str], code: int, message: str
):
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert message in result.stderr
