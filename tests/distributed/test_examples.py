"""Every example trains on two processes, and its loss falls."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.distributed.launch import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 12


def run(*commands: list[str]) -> list[list[float]]:
    """Run scripts one after the other; return the losses that each printed."""
    found = []
    for name, *arguments in commands:
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            patch.object(sys, "argv", [name, *arguments]),
            patch.object(sys, "path", [str(EXAMPLES), *sys.path]),
        ):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        lines = re.findall(r"step \d+: loss ([\d.]+)", printed.getvalue())
        found.append([float(line) for line in lines])
    return found


def losses(*command: str) -> list[float]:
    """Return what rank 0 printed."""
    first, second = launch(2, run, list(command), timeout_s=300)
    assert second == [[]]
    return first[0]


def falls(values: list[float]) -> bool:
    """Whether the last three are clearly below the first three."""
    return sum(values[-3:]) < 0.97 * sum(values[:3])


@pytest.mark.parametrize("name", ["gpt2_train", "t5_translate", "unet", "lora"])
def test_each_of_these_trains(name: str):
    found = losses(f"{name}.py", "--steps", str(STEPS))
    assert len(found) == STEPS
    assert falls(found)


def test_a_classifier_trains_from_a_folder_of_safetensors(tmp_path):
    folder, runs = str(tmp_path / "bert"), str(tmp_path / "runs")
    run(["finetune_classifier.py", "--folder", folder, "--make"])
    found = losses(
        "finetune_classifier.py", "--folder", folder, "--runs", runs, "--steps", "12"
    )
    assert falls(found)
    assert (tmp_path / "runs" / "latest").exists()


def test_pre_training_goes_on_where_it_stopped(tmp_path):
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 200)

    def trained(folder: str, steps: int) -> list[float]:
        return losses(
            *("pretrain_text.py", str(text), "--folder", str(tmp_path / folder)),
            *("--steps", str(steps)),
        )

    whole = trained("whole", STEPS)
    assert falls(whole)
    begun = trained("parts", 5)
    shutil.copytree(tmp_path / "parts", tmp_path / "more")
    assert begun + trained("parts", STEPS) == whole

    # … and with other stages: three processes go on where two stopped.
    command = ["pretrain_text.py", str(text), "--folder", str(tmp_path / "more")]
    more = ["--steps", str(STEPS), "--stages", "3"]
    found, *others = launch(3, run, command + more, timeout_s=300)
    assert others == [[[]], [[]]]
    assert begun + found[0] == pytest.approx(whole, abs=2e-4)  # what is printed


def test_a_lightning_module_trains_and_goes_on_with_more_stages(tmp_path):
    command = [sys.executable, EXAMPLES / "lightning_train.py", "--folder", tmp_path]
    done = subprocess.run(
        [*command, "--epochs", "2"],  # Lightning starts the second process itself
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = re.findall(r"step \d+: loss ([\d.]+)", done.stdout)
    found = [float(line) for line in lines]
    assert len(found) == 16
    assert falls(found)
    more = ["--epochs", "2", "--resume", "--stages", "3"]
    command = ["lightning_train.py", "--folder", str(tmp_path), *more]
    first, *others = launch(3, run, command, timeout_s=300)
    assert others == [[[]], [[]]]
    assert len(first[0]) == 16
    assert max(first[0][:3]) < min(found[:3])


def test_the_deepspeed_launcher_starts_the_same_script():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
    done = subprocess.run(
        [*launcher, "--master_port", port, EXAMPLES / "unet.py", "--steps", "2"],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 1: loss" in done.stdout
