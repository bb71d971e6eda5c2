"""Runs a program in a process of its own, under a clock that really stops it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pulp

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SOLVERS", "Outcome", "require_solver", "run_solver"]

SOLVERS = ("cbc", "highs")

Status = Literal["optimal", "infeasible", "stopped", "failed"]

GRACE_SHARE = 0.9
"""Share of the time that the solver is told; the rest is for it to write its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a solver said."""

    status: Status
    values: dict[str, float] = field(default_factory=dict)
    """Value of each variable by name; empty if there is no solution."""
    reason: str = ""
    """Why it failed or stopped, in words."""


def require_solver(solver: str) -> None:
    """Check that a solver is known and installed.

    Raises:
        OptionError: It is not.
    """
    if solver not in SOLVERS:
        raise OptionError(
            f"solver={solver!r} is not known",
            hint="Use one of: " + ", ".join(SOLVERS) + ".",
        )
    if solver == "highs" and importlib.util.find_spec("highspy") is None:
        raise OptionError(
            'solver="highs" needs the package highspy, which is not installed',
            hint='Install the extra: pip install "fx-partitioner[highs]".',
        )


def run_solver(model: Any, *, solver: str, gap: float, time_limit_s: float) -> Outcome:
    """Solve a PuLP model; never raises for what the solver does.

    Args:
        model: The ``pulp.LpProblem``, minimised.
        solver: One of `SOLVERS`.
        gap: Relative gap at which the solver may call a solution optimal.
        time_limit_s: Wall-clock seconds after which the solver is killed.
    """
    deadline = time.monotonic() + time_limit_s
    with tempfile.TemporaryDirectory(prefix="partitioner-") as folder:
        program = Path(folder) / "program.mps"
        answer = Path(folder) / "answer"
        model.writeMPS(str(program))
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return Outcome(status="stopped", reason="the time limit struck")
        make = _highs_command if solver == "highs" else _cbc_command
        command = make(program, answer, gap, max(0.1, left_s * GRACE_SHARE))
        reason = _run(command, left_s)
        if not answer.exists():
            stopped = reason == TIMED_OUT
            return Outcome(
                status="stopped" if stopped else "failed",
                reason=reason or "it wrote no answer",
            )
        read = _read_highs if solver == "highs" else _read_cbc
        try:
            return read(answer.read_text(encoding="utf-8"))
        except (ValueError, KeyError, IndexError) as error:
            return Outcome(status="failed", reason=f"unreadable answer: {error}")


TIMED_OUT = "it was stopped at the time limit"


def _run(command: Sequence[str], limit_s: float) -> str:
    """Run a command, kill it and its children at the limit; return what went wrong."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"it could not be started: {error}"
    try:
        code = process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        _kill(process)
    return f"it exited with code {code}" if code else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


# ---------------------------------------------------------------- CBC


def _cbc_path() -> str:
    return str(pulp.PULP_CBC_CMD().path)


def _cbc_command(
    program: Path, answer: Path, gap: float, limit_s: float
) -> Sequence[str]:
    limits = ["-sec", f"{limit_s:.3f}", "-timeMode", "elapsed", "-ratio", repr(gap)]
    return [
        *(_cbc_path(), str(program), *limits),
        *("-branch", "-printingOptions", "all", "-solution", str(answer)),
    ]


def _read_cbc(text: str) -> Outcome:
    """Read CBC's solution file: a status line, then ``index name value cost``."""
    head, *rows = text.splitlines()
    head = head.lower()
    if "infeasible" in head:
        return Outcome(status="infeasible")
    if "no integer solution" in head or "unbounded" in head:
        return Outcome(status="stopped", reason=head)
    values = {}
    for row in rows:
        _, name, value, *_ = row.replace("**", " ").split()
        values[name] = float(value)
    if re.match(r"optimal\b", head):
        return Outcome(status="optimal", values=values)
    return Outcome(status="stopped", values=values, reason=head)


# ---------------------------------------------------------------- HiGHS


def _highs_command(
    program: Path, answer: Path, gap: float, limit_s: float
) -> Sequence[str]:
    script = Path(__file__).with_name("highs_process.py")
    return [
        sys.executable,
        str(script),
        str(program),
        str(answer),
        repr(gap),
        repr(limit_s),
    ]


def _read_highs(text: str) -> Outcome:
    said = json.loads(text)
    return Outcome(
        status=said["status"], values=said["values"], reason=said.get("reason", "")
    )
