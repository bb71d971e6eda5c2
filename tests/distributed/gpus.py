"""Run a module on two GPUs, as a launcher would: NCCL wants one GPU for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

__all__ = ["needs_two_gpus", "on_two_gpus"]

_FOUND = torch.cuda.device_count()

needs_two_gpus = pytest.mark.skipif(
    _FOUND < 2, reason=f"needs two GPUs, one for each stage; found {_FOUND}"
)


def on_two_gpus(module: str, folder: Path, timeout_s: float = 300.0) -> list[Any]:
    """Run ``python -m module folder`` as two ranks.

    Args:
        module: Writes ``rank_0.pt`` and ``rank_1.pt`` into the folder.
        folder: Where it works.
        timeout_s: After this it is killed.

    Returns:
        What the ranks have written, on the CPU.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", module, str(folder)]
    done = subprocess.run(
        command,
        env={**os.environ, "DS_ACCELERATOR": "cuda"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    files = [folder / f"rank_{rank}.pt" for rank in range(2)]
    return [torch.load(file, map_location="cpu", weights_only=False) for file in files]
