"""One of two ranks under Lightning on GPUs: fit, validate, save and resume."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from partitioner.runtime.agreement import ensure_process_group
from tests.distributed.lightning_runs import Fit, fit

__all__ = ["RUN"]

RUN = Fit(optimizer="adamw", shuffle=True, trainer={"gradient_clip_val": 0.3})


def main() -> None:
    ensure_process_group()
    folder = Path(sys.argv[1])
    kind = {"accelerator": get_accelerator().device_name()}
    run = replace(RUN, folder=str(folder), trainer={**RUN.trainer, **kind})
    first = fit(run, piped=True)
    longer = {**run.trainer, "max_epochs": 3}
    resumed = fit(replace(run, resume=first.checkpoint, trainer=longer), piped=True)
    rank = dist.get_rank()
    torch.save([asdict(first), asdict(resumed)], folder / f"rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
