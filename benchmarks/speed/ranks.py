"""The processes of one run: joining them, and putting together what each has found."""

from __future__ import annotations

import datetime
import logging
import os
import statistics
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
import torch.distributed as dist
import transformers

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["gather", "join", "join_alone", "joined"]


def join(kind: str) -> torch.device:
    """Join the launcher's process group; return this rank's device."""
    rank = int(os.environ["LOCAL_RANK"])
    if kind == "cuda":
        torch.cuda.set_device(rank)
    limit = datetime.timedelta(minutes=8)
    backend = "nccl" if kind == "cuda" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, timeout=limit, verbose=False)
    _quieten()
    return torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")


def join_alone(kind: str) -> torch.device:
    """Make a process group of this process alone; return its device."""
    if kind == "cuda":
        torch.cuda.set_device(0)
    store = dist.HashStore()  # type: ignore[attr-defined] # torch does not list it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    _quieten()
    return torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")


def _quieten() -> None:
    transformers.logging.set_verbosity_error()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def gather(mine: Any) -> list[Any]:
    """Return what every rank has, in their order."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def joined(ranks: Sequence[Sequence[float]], *, alone: bool) -> list[float]:
    """Return the seconds of each step: the slowest rank's, or a mean if each is alone.

    The rates of devices that work for themselves add up; so the mean is harmonic.
    """
    steps = zip(*ranks, strict=True)
    return [statistics.harmonic_mean(step) if alone else max(step) for step in steps]
