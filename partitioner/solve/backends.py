"""Runs a program in a process of its own, under a clock that really stops it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
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
    from collections.abc import Callable, Sequence

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
    bound: float = -math.inf
    """Proven lower bound on the objective, as far as the solver said one."""
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


def run_solver(
    model: Any, *, solver: str, gap: float, time_limit_s: float, relax: bool = False
) -> Outcome:
    """Solve a PuLP model; never raises for what the solver does.

    Args:
        model: The ``pulp.LpProblem``, minimised.
        solver: One of `SOLVERS`.
        gap: Relative gap at which the solver may call a solution optimal.
        time_limit_s: Wall-clock seconds after which the solver is killed.
        relax: Let integer variables take fractions: a lower bound, quickly.
    """
    deadline = time.monotonic() + time_limit_s
    with tempfile.TemporaryDirectory(prefix="partitioner-") as folder:
        program = Path(folder) / "program.mps"
        answer = Path(folder) / "answer"
        model.writeMPS(str(program), mip=not relax)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return Outcome(status="stopped", reason="the time limit struck")
        make = _highs_command if solver == "highs" else _cbc_command
        command = make(program, answer, gap, max(0.1, left_s * GRACE_SHARE))
        reason, log = _run(command, left_s, Path(folder) / "log")
        read = _read_highs if solver == "highs" else _read_cbc
        return _outcome(read, answer, reason, log)


TIMED_OUT = "it was stopped at the time limit"


def _outcome(
    read: Callable[[str], Outcome], answer: Path, reason: str, log: str
) -> Outcome:
    """Read the answer if there is one, else say why there is none."""
    bound = _logged_bound(log)
    if not answer.exists():
        if reason == TIMED_OUT:
            return Outcome(status="stopped", reason=reason, bound=bound)
        return Outcome(status="failed", reason=reason or "it wrote no answer")
    try:
        said = read(answer.read_text(encoding="utf-8"))
    except (ValueError, KeyError, IndexError) as error:
        return Outcome(status="failed", reason=f"its answer is unreadable: {error}")
    return dataclasses.replace(said, bound=max(bound, said.bound))


def _run(command: Sequence[str], limit_s: float, log: Path) -> tuple[str, str]:
    """Run a command and kill it and its children at the limit.

    Returns:
        What went wrong (empty if nothing), and what the command printed.
    """
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        return f"it could not be started: {error}", ""
    reason = TIMED_OUT
    try:
        code = process.wait(timeout=limit_s)
        reason = f"it exited with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        pass
    finally:
        _kill(process)
    return reason, log.read_text(encoding="utf-8", errors="replace")


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


def _logged_bound(log: str) -> float:
    """Return the last bound in CBC's log: of the root, of the tree, or at the end."""
    pattern = (
        r"(?:Continuous objective value is|best possible|Lower bound:)\s+(\S+?)[\s),]"
    )
    found = re.findall(pattern, log)
    try:
        return float(found[-1]) if found else -math.inf
    except ValueError:
        return -math.inf


def _read_cbc(text: str) -> Outcome:
    """Read CBC's solution file: a status line, then ``index name value cost``."""
    head, *rows = text.splitlines()
    head = head.lower()
    if "infeasible" in head:
        return Outcome(status="infeasible")
    if "no integer solution" in head or "unbounded" in head:
        return Outcome(status="stopped", reason=_head_reason(head))
    values = {}
    for row in rows:
        _, name, value, *_ = row.replace("**", " ").split()
        values[name] = float(value)
    if re.match(r"optimal\b", head):
        return Outcome(status="optimal", values=values)
    return Outcome(status="stopped", values=values, reason=_head_reason(head))


def _head_reason(head: str) -> str:
    return f"it ended as: {head.split(' - objective', maxsplit=1)[0].strip()}"


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
        status=said["status"],
        values=said["values"],
        bound=said["bound"],
        reason=said["reason"],
    )
