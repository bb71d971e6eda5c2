"""Examples that need one process; those that train are tested in distributed/."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from partitioner.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return what runs an example as a script, and returns what it printed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def runs(name: str, *arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield runs
    for name in {path.stem for path in EXAMPLES.glob("*.py")} & sys.modules.keys():
        del sys.modules[name]


def test_a_large_model_is_inspected_without_its_weights() -> None:
    target = str(EXAMPLES / "llama_8b.py")
    options = ["--stages", "4", "--device", "h100", "--dtype", "bfloat16", "--json"]
    result = CliRunner().invoke(main, ["inspect", target, *options])
    assert result.exit_code == 0, result.output
    parameters = [stage["parameters"] for stage in json.loads(result.stdout)["stages"]]
    assert sum(parameters) > 8e9


def test_layouts_of_some_gpus_are_compared(run, tmp_path: Path) -> None:
    printed = run("tune_gpus.py", "--gpus", "2", "--folder", tmp_path / "best")
    for layout in ("1 GPU", "data parallel × 2", "2 stages"):
        assert any(line.startswith(f" {layout} ") for line in printed.splitlines())
    assert {path.name for path in (tmp_path / "best").iterdir()} == {
        "plan.json",
        "ds_config.json",
    }


def test_every_example_is_run_by_a_test() -> None:
    tests = Path(__file__).parent
    text = "".join(path.read_text("utf-8") for path in tests.rglob("test_examples.py"))
    makefile = (EXAMPLES.parent / "Makefile").read_text("utf-8")  # make demo
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"training"}
    assert {name for name in names if name not in text + makefile} == set()


def written(folder: Path, *lines: str) -> Path:
    path = folder / "hostfile"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_hostfile_says_where_each_stage_stands(run, tmp_path: Path) -> None:
    hosts = written(tmp_path, "# two nodes", "node-a slots=2", "node-b slots=2")
    lines = run("hostfile.py", hosts).splitlines()
    places = [line.split()[3] for line in lines if line.startswith("stage ")]
    assert places == ["node-a:", "node-a:", "node-b:", "node-b:"]
    (over,) = [line for line in lines if line.startswith("over the network")]
    assert over.startswith("over the network after stage 1: ")
    assert lines[-1] == f"deepspeed --hostfile {hosts} train.py"


def test_replicas_of_a_stage_are_neighbours(run, tmp_path: Path) -> None:
    hosts = written(tmp_path, "node-a slots=4", "node-b slots=4")
    lines = run("hostfile.py", hosts, "--replicas", "4").splitlines()
    places = [line.split()[3] for line in lines if line.startswith("stage ")]
    assert places == ["node-a:", "node-b:"]


def test_nodes_of_unequal_size_are_refused(run, tmp_path: Path) -> None:
    hosts = written(tmp_path, "node-a slots=4", "node-b slots=2")
    with pytest.raises(SystemExit) as stopped:
        run("hostfile.py", hosts)
    assert stopped.value.code == 2


@pytest.mark.parametrize("replicas", ["0", "3"])
def test_replicas_that_cannot_share_the_devices_are_refused(
    run, tmp_path: Path, replicas: str
) -> None:
    hosts = written(tmp_path, "node-a slots=4", "node-b slots=4")
    with pytest.raises(SystemExit) as stopped:
        run("hostfile.py", hosts, "--replicas", replicas)
    assert stopped.value.code == 2


def test_a_hostfile_that_is_not_there_is_refused(run, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        run("hostfile.py", tmp_path / "nowhere")
    assert stopped.value.code == 2
