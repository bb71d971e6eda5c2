"""``partitioner tune --measure K``: real processes, and the clock's word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from partitioner import OptionError
from partitioner.cli import main
from partitioner.report.tuning import tuning_text
from partitioner.tuning import Devices, Measured, Tuning, measure
from partitioner.tuning.measure import _read
from tests.tuning.models import tuned

TARGET = '''
import os, torch
from torch import nn

LAYERS, ran = 8, set()
torch.manual_seed(0)

class Hungry(nn.Linear):
    """Wants more than there is, where all of them run in one process."""

    def forward(self, x):
        if type(x) is torch.Tensor and "RANK" in os.environ:
            ran.add(id(self))
            if len(ran) == LAYERS:
                torch.empty(2**50)
        return super().forward(x)

def model():
    return nn.Sequential(*(Hungry(32, 32) for _ in range(LAYERS)))

example_inputs = torch.zeros(2, 32)
'''


SLEEPER = """
import os, pathlib, time, torch
from torch import nn

class Sleeper(nn.Linear):
    def forward(self, x):
        if type(x) is torch.Tensor and "RANK" in os.environ:
            pathlib.Path(__file__).with_name(f"pid{os.getpid()}").touch()
            time.sleep(600)
        return super().forward(x)

def model():
    return nn.Sequential(Sleeper(32, 32), Sleeper(32, 32))

example_inputs = torch.zeros(2, 32)
"""


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_what_takes_too_long_is_ended_with_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(_read.__globals__, "LIMIT_S", 25.0)
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    words = ["tune", f"{tmp_path / 'sleeper.py'}:model", "--gpus", "2", "--batch", "16"]
    words += ["--device", "h100", "--measure", "1", "--leaf", "*", "--json"]
    result = CliRunner().invoke(main, words)
    reasons = [row["measured_reason"] for row in json.loads(result.stdout)["rows"]]
    assert "stopped: it took more than 25 s" in reasons
    pids = [int(path.name.removeprefix("pid")) for path in tmp_path.glob("pid*")]
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_what_runs_is_measured_and_what_runs_out_of_memory_is_named(tmp_path: Path):
    (tmp_path / "hungry.py").write_text(TARGET)
    words = ["tune", f"{tmp_path / 'hungry.py'}:model", "--gpus", "2", "--batch", "16"]
    words += ["--device", "h100", "--measure", "2", "--leaf", "*", "--json"]
    result = CliRunner().invoke(main, [*words, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    hungry = rows["data parallel × 2"]
    assert hungry["measured_step_s"] is None
    assert hungry["measured_reason"].startswith("out of memory on rank")
    assert "can't allocate memory" in hungry["measured_reason"]
    (ran,) = [row for row in found["rows"] if row["measured_step_s"]]
    assert ran["stages"] == 2
    assert 1e-4 < ran["measured_step_s"] < 10
    assert found["rows"][found["best"]] == ran
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["options"]["schedule"] == ran["schedule"]
    assert rows["1 GPU"]["measured_reason"] == ""
    lines = tuning_text(found).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert f"Measured: {ran['name']}, " in text
    assert "Measured on cpu" in text
    assert "! data parallel × 2: out of memory on rank" in text
    assert f"Best: {ran['name']}, by what was measured." in text


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    return tuned(gpus=2, batch=16)


def with_measured(tuning: Tuning, *found: Measured | None) -> Tuning:
    pairs = zip(tuning.rows, found, strict=True)
    rows = tuple(replace(row, measured=each) for row, each in pairs)
    return replace(tuning, rows=rows, measured_on="cpu")


def test_what_needs_more_devices_is_not_measured_and_the_prediction_stays(
    tuning: Tuning,
):
    one = Devices(name="a card", count=1)
    found = measure(tuning, {"text": "never.py", "options": {}}, top=2, devices=one)
    named = [row for row in found.rows if row.measured]
    assert len(named) == 2
    for row in named:
        assert row.measured is not None
        assert row.measured.reason == (
            "not measured: it takes 2 devices, and this machine has 1 (a card)"
        )
    assert tuning.best is not None
    assert found.best is not None
    assert found.best.layout == tuning.best.layout


def test_the_clock_decides_among_what_ran(tuning: Tuning):
    slow, quick = Measured(step_s=2.0), Measured(step_s=1.0)
    assert tuning.best is not tuning.rows[2]
    found = with_measured(tuning, None, slow, quick, None)
    assert found.best is found.rows[2]
    equal = with_measured(tuning, None, quick, quick, None)
    assert equal.best is equal.rows[1]


def test_what_failed_is_not_the_best(tuning: Tuning):
    assert tuning.best is not None
    at = tuning.rows.index(tuning.best)
    failed = Measured(reason="out of memory on rank 0: much", failed=True)
    measured = [failed if index == at else None for index in range(4)]
    found = with_measured(tuning, *measured)
    assert found.best is not None
    assert found.best.layout != tuning.best.layout
    none = with_measured(tuning, *[failed] * 4)
    assert none.best is None


ERROR = {"rank": 1, "memory": False, "message": "StageError: no such layer"}


@pytest.mark.parametrize(
    ("code", "errors", "output", "reason"),
    [
        (1, [ERROR], "…", "failed on rank 1: StageError: no such layer"),
        (
            1,
            [ERROR, {"rank": 0, "memory": True, "message": "OutOfMemoryError: 8 GiB"}],
            "…",
            "out of memory on rank 0: OutOfMemoryError: 8 GiB",
        ),
        (
            1,
            [],
            "rank 0 (local_rank: 0) exitcode: -9 (pid: 7)",
            "out of memory: the system has killed a process",
        ),
        (1, [], "one\nthe last word\n", "failed: the last word"),
        (1, [], "", "failed: without a word"),
        (None, [], "…", "stopped: it took more than 1800 s"),
        (0, [], "no result", "failed: no result"),
    ],
)
def test_what_went_wrong_is_told(
    tmp_path: Path, code: int | None, errors: list, output: str, reason: str
):
    for error in errors:
        path = tmp_path / f"error-{error['rank']}.json"
        path.write_text(json.dumps(error))
    (tmp_path / "output.txt").write_text(output)
    found = _read(tmp_path, code)
    assert found == Measured(reason=reason, failed=True)


@pytest.mark.parametrize("top", [0, True, 1.5])
def test_a_number_of_layouts_is_whole(tuning: Tuning, top: int):
    with pytest.raises(OptionError, match="measure is"):
        measure(tuning, {"text": "never.py", "options": {}}, top=top)
