"""One of two ranks on GPUs: every engine, checkpoints, and weights from files."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from partitioner.runtime.agreement import ensure_process_group
from tests.distributed.engines import ENGINES, train_stages
from tests.distributed.parity import Case
from tests.distributed.resuming import Run, train
from tests.distributed.weights import train_from

__all__ = ["ENGINES_ON_GPUS", "RESUMED", "SAVED", "STEPS", "WEIGHTS"]

ENGINES_ON_GPUS = [name for name, engine in ENGINES.items() if engine.stages == 2]
RESUMED = {
    "sgd": Run(dropout=0.4),
    "adamw-zero1": Run(optimizer="adamw", zero=1, dropout=0.4, recompute=True),
    "bf16-zero1": Run(optimizer="adamw", zero=1, bf16=True),
    "dualpipev": Run(vee=True),
}
STEPS, SAVED = 6, 3
WEIGHTS = "weights"
"""Folder with a GPT-2's weights."""


def checkpoints(folder: Path) -> dict[str, Any]:
    """Train without a stop, and from the checkpoint that this run has left."""
    found = {}
    for name, run in RESUMED.items():
        whole = train(run, STEPS, save={SAVED: (folder, name)})
        resumed = train(run, STEPS, load=(folder, name))
        found[name] = (asdict(whole), asdict(resumed))
    return found


def main(folder: Path) -> None:
    ensure_process_group()
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    case = Case(model="gpt2", stages=2, steps=3)
    found = {
        "backend": dist.get_backend(),
        "engines": [asdict(each) for each in train_stages(ENGINES_ON_GPUS)],
        "checkpoints": checkpoints(folder / "checkpoints"),
        "weights": [
            asdict(each) for each in train_from(case, [None, folder / WEIGHTS])
        ],
    }
    torch.save(found, folder / f"rank_{dist.get_rank()}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
