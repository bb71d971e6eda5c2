"""What is printed where there is no Unicode, no colour, or no wide terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from partitioner.cli import main
from partitioner.cli.encoding import degrade

ROOT = Path(__file__).parents[2]

MODEL = """
import torch
from torch import nn

model = nn.Sequential()
for name in ("in", "λ1", "λ2", "λ3", "out"):
    model.add_module(name, nn.Linear(16, 16))
example_inputs = torch.ones(3, 16)
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def run(charset: str, *arguments: str | Path) -> Result:
    return CliRunner(charset=charset).invoke(main, list(map(str, arguments)))


def test_a_report_in_ascii_keeps_its_columns(target: Path) -> None:
    arguments = ("inspect", target, "--device", "cpu", "--timeline", "--compare")
    plain, unicode = run("ascii", *arguments), run("utf-8", *arguments)
    assert plain.exit_code == 0, plain.output
    assert plain.stdout.isascii()
    assert "?" not in plain.stdout
    assert " ----" in plain.stdout
    assert not unicode.stdout.isascii()
    before, after = unicode.stdout.splitlines(), plain.stdout.splitlines()
    rows = [i for i, line in enumerate(before) if line.startswith("rank ")]
    assert len(rows) == 2
    assert [len(after[i]) for i in rows] == [len(before[i]) for i in rows]


def test_a_name_that_has_no_ascii_form_is_written_as_its_code(target: Path) -> None:
    arguments = ("inspect", target, "--device", "cpu", "--by", "module")
    assert r"\u03bb1" in run("ascii", *arguments).stdout


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Without the last two Python turns to UTF-8 by itself."""


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, C_LOCALE])
def test_errors_of_the_program_in_ascii(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "partitioner", "inspect", tmp_path / "λ.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert b"error: there is no file" in done.stderr
    assert done.stderr.isascii()
    assert b"Traceback" not in done.stderr


def on_a_terminal(*arguments: str | Path, **environment: str) -> str:
    """Return what the program writes to a terminal."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "partitioner", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment},
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )
    os.close(terminal)
    parts = []
    with contextlib.suppress(
        OSError
    ):  # how a terminal says that nobody writes any more
        while part := os.read(controller, 4096):
            parts.append(part)
    os.close(controller)
    assert process.wait(timeout=200) == 0
    return b"".join(parts).decode()


def test_a_terminal_that_can_do_nothing_gets_plain_text(target: Path) -> None:
    written = on_a_terminal("inspect", target, "--device", "cpu", TERM="dumb")
    assert written.startswith("Sequential: 2 stages, ")
    assert "\x1b" not in written


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("layers.0…7", "layers.0~7"),
        ("planning …", "planning ..."),
        ("a, …, b", "a, ..., b"),
        ("verify(inputs=…)", "verify(inputs=...)"),
        ("– 2 × 3 ─│· “a”", '- 2 x 3 -|. "a"'),
        ("5 µs, ∞", "5 us, inf"),
        ("日", r"\u65e5"),
    ],
)
def test_each_character_has_a_plain_form(text: str, plain: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    degrade([stream, io.StringIO()])
    stream.write(text)
    stream.flush()
    assert raw.getvalue().decode("ascii") == plain


def test_every_help_is_ascii_and_fits_80_columns() -> None:
    assert isinstance(main, click.Group)
    for command in (main, *main.commands.values()):
        assert command.name
        text = command.get_help(click.Context(command, info_name=command.name))
        assert text.isascii(), command.name
        assert max(map(len, text.splitlines())) <= 80
