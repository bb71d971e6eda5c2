"""Run the fastest layouts for a few steps here, and let the clock decide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.accelerator import get_accelerator

from partitioner.errors import OptionError
from partitioner.tuning.result import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partitioner.plan import Plan
    from partitioner.tuning.result import Tuning

__all__ = ["Devices", "measure"]

WORKER = "partitioner.tune_worker"
LIMIT_S = 1800.0
"""What one layout may take in all, with loading and building."""
GRACE_S = 60.0
"""For the launcher to end its ranks: it kills those that do not end in 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What there is on this machine to run on."""

    name: str
    count: int

    @classmethod
    def present(cls) -> Devices:
        """Return the GPUs, else the CPU's cores: one process for each."""
        accelerator = get_accelerator()
        if accelerator.device_name() == "cpu":
            return cls(name="cpu", count=len(os.sched_getaffinity(0)))
        return cls(name=torch.cuda.get_device_name(), count=accelerator.device_count())


def measure(
    tuning: Tuning,
    target: Mapping[str, Any],
    *,
    top: int,
    devices: Devices | None = None,
    progress: Callable[[str], None] | None = None,
) -> Tuning:
    """Run the layouts that are predicted to be fastest, one after the other.

    Each runs in processes of its own under torch's launcher, with DeepSpeed and the
    example inputs as data: two steps to warm up, then five, of which the median counts.

    Args:
        tuning: What was predicted.
        target: ``text`` and ``options`` of what ``targets.open_target`` opens.
        top: How many of them.
        devices: What to run on; None: what is here.
        progress: Called with a sentence before each layout.

    Returns:
        The same with what was measured, or why it was not; ``best`` is then the fastest
        of those that ran.

    Raises:
        OptionError: ``top`` is no number of layouts.
    """
    if type(top) is not int or top < 1:
        raise OptionError(f"measure is {top!r}", hint="give 1 layout or more")
    tell = progress or (lambda _: None)
    here = devices or Devices.present()
    plans = {row.layout: row.plan for row in tuning.rows if row.plan is not None}
    predicted_s = {row.layout: row.step_s or 0.0 for row in tuning.rows}
    found = {}
    for layout in sorted(plans, key=lambda layout: predicted_s[layout])[:top]:
        tell(f"running {layout.name}")
        found[layout] = _measured(plans[layout], layout.gpus, target, here)
    rows = tuple(
        replace(row, measured=found.get(row.layout, row.measured))
        for row in tuning.rows
    )
    return replace(tuning, rows=rows, measured_on=here.name)


def _measured(
    plan: Plan, needed: int, target: Mapping[str, Any], here: Devices
) -> Measured:
    if needed > here.count:
        what = f"it takes {needed} devices, and this machine has {here.count}"
        return Measured(reason=f"not measured: {what} ({here.name})")
    with tempfile.TemporaryDirectory(prefix="partitioner-tune-") as name:
        folder = Path(name)
        plan.save(folder / "plan.json")
        job = {**target, "plan": str(folder / "plan.json"), "folder": name}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        code = _launched(folder, needed)
        return _read(folder, code)


def _launched(folder: Path, processes: int) -> int | None:
    """Run the worker on every device; return its exit code, None if it took long."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", WORKER]
    command.append(str(folder / "job.json"))
    ours = str(Path(__file__).parents[2])
    paths = [ours, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:  # too long, or interrupted
                _end(process)


def _end(launcher: subprocess.Popen[Any]) -> None:
    """End the launcher with its ranks, which have sessions of their own.

    Only it knows them, and ends them when it is asked to end.
    """
    launcher.terminate()
    try:
        launcher.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def _read(folder: Path, code: int | None) -> Measured:
    """Return what the ranks wrote: what was measured, or what went wrong."""
    result = folder / "result.json"
    if code == 0 and result.is_file():
        return Measured(**json.loads(result.read_text(encoding="utf-8")))
    errors = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("error-*.json"))
    ]
    for error in sorted(errors, key=lambda error: not error["memory"]):
        kind = "out of memory" if error["memory"] else "failed"
        return _failed(f"{kind} on rank {error['rank']}: {error['message']}")
    if code is None:
        return _failed(f"stopped: it took more than {LIMIT_S:.0f} s")
    output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
    if "Signal 9" in output or "exitcode: -9" in output:
        return _failed("out of memory: the system has killed a process")
    last = output.strip().splitlines()[-1:] or ["without a word"]
    return _failed(f"failed: {last[0].strip()}")


def _failed(reason: str) -> Measured:
    return Measured(reason=reason, failed=True)
