"""Shell completion, as the shells ask for it, and ``--version``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import partitioner
from partitioner.cli import main
from partitioner.cli.version import _PACKAGES

ROOT = Path(__file__).parents[2]


def asked(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program as bash does when Tab is pressed after the last word."""
    code = "from partitioner.cli import main; main(prog_name='partitioner')"
    given = {
        "PYTHONPATH": str(ROOT),
        "_PARTITIONER_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("partitioner ins", ["plain,inspect"]),
        ("partitioner t", ["plain,trace", "plain,tune"]),
        ("partitioner inspect net.py --micro-batches 4 --sta", ["plain,--stages"]),
        ("partitioner inspect net.py --solver h", ["plain,highs"]),
        ("partitioner inspect mod", ["file,mod"]),
        ("partitioner doctor conf", ["file,conf"]),
        ("partitioner doctor ds.json --plan pl", ["file,pl"]),
        ("partitioner inspect net.py -o pl", ["file,pl"]),
        ("partitioner export ru", ["dir,ru"]),
    ],
)
def test_words_are_completed(words: str, answers: list[str]) -> None:
    assert asked(words).stdout.splitlines() == answers


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    done = asked("", _PARTITIONER_COMPLETE=f"{shell}_source")
    assert "_PARTITIONER_COMPLETE" in done.stdout


def test_version_names_what_results_depend_on() -> None:
    lines = CliRunner().invoke(main, ["--version"]).stdout.splitlines()
    assert lines[0] == f"partitioner {partitioner.__version__}"
    assert lines[1].startswith(f"python {platform.python_version()} (")
    assert f"torch {torch.__version__}" in lines
    assert f"deepspeed {version('deepspeed')}" in lines
    assert f"pulp {version('pulp')}" in lines
    assert f"highspy {version('highspy')}" in lines


def test_version_without_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = (*_PACKAGES, "no-such-package-x")
    monkeypatch.setattr("partitioner.cli.version._PACKAGES", missing)
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "no-such-package-x not installed"
