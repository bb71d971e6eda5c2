"""The script on tiny shapes: what it runs, its losses, and how it is gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stages_alone import main

ROOT = Path(__file__).parent.parent.parent


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.stages_alone", "--device", "cpu"),
            *("--dtype", "float32", "--models", "t5-large", "--micro-batches", "4"),
            *("--repeats", "2", "--out", str(folder), *arguments),
        ],
        cwd=ROOT,
        check=True,  # and so no loss is wrong
        capture_output=True,
        text=True,
    )
    return done.stdout


def file_of(folder: Path) -> Path:
    return folder / "stages-alone-cpu-float32.jsonl"


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    read = map(json.loads, file_of(folder).read_text().splitlines())
    return {each["key"][2]: each for each in read if each["event"] == "done"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All eager variants but the whole-layer cuts have run."""
    found = tmp_path_factory.mktemp("alone")
    run(found, "--variants", "eager/*", "--cuts")
    return found


def test_variants_of_one_gpu_and_of_1f1b_run_and_no_others(folder):
    assert set(lines(folder)) == {
        "eager/one-gpu",
        "eager/hand-parameters",  # where uniform cuts as well
        "eager/hand-planned",
        "eager/ours-layers",
        "eager/ours-free",
    }


def test_every_stage_has_its_time_next_to_what_the_planner_says(folder):
    for name, line in lines(folder).items():
        assert len(line["stages"]) == (1 if name.endswith("one-gpu") else 2)
        for stage in line["stages"]:
            assert stage["seconds"] > 0
            assert stage["host_s"] > 0
            assert stage["predicted_s"] > 0
            assert stage["predicted_host_s"] == 0  # a CPU is its own host
    one, planned = (lines(folder)[f"eager/{n}"] for n in ("one-gpu", "hand-planned"))
    parts = sum(stage["predicted_s"] for stage in planned["stages"])
    assert one["stages"][0]["predicted_s"] == pytest.approx(parts)


def test_losses_are_those_of_the_whole_model(folder):
    found = lines(folder)
    whole = found["eager/one-gpu"]["loss"]
    for line in found.values():
        assert line["loss"] == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "processes", "said"),
    [
        (("--repeats", "0"), "1", "--repeats is 0; at least one must be timed"),
        ((), "2", "started as 2 processes; it is one"),
    ],
)
def test_what_could_give_no_honest_time_is_refused(
    monkeypatch, capsys, arguments, processes, said
):
    monkeypatch.setattr(sys, "argv", ["stages_alone", *arguments])
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_prices_lie_where_throughput_looks_for_them(folder):
    assert (folder / "prices-t5-large-eager-cpu.json").exists()


def test_what_is_done_is_not_run_again_and_what_failed_on_demand(folder):
    before = file_of(folder).read_text()
    key = ["t5-large", 4, "eager/hand-cut-03", 0]
    begun = json.dumps({"event": "begun", "key": key}) + "\n"
    file_of(folder).write_text(before + begun)
    arguments = ("--variants", "eager/*", "--cuts", "3")
    assert "failed: t5-large 4 eager/hand-cut-03 0" in run(folder, *arguments)
    assert file_of(folder).read_text() == before + begun
    assert "failed" not in run(folder, *arguments, "--retry")
    assert lines(folder)["eager/hand-cut-03"]["cut"] == [0, 3, 8]
    added = file_of(folder).read_text().removeprefix(before + begun)
    assert [json.loads(each)["key"] for each in added.splitlines()] == [key, key]
