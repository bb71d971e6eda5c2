"""Seconds of training steps, and the memory that they take."""

from __future__ import annotations

import gc
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from benchmarks.speed.runner import Runner

__all__ = [
    "Clock",
    "Steps",
    "free",
    "held_bytes",
    "peak_bytes",
    "restart_peak",
    "timed_steps",
    "wait",
]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What some steps took on this rank."""

    seconds: list[float]
    peak_bytes: int
    losses: list[float]


class Clock:
    """Marks moments on the device's own stream, or on the host's clock.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event | float] = []

    def mark(self) -> None:
        """Note this moment, without waiting for the device."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def intervals(self) -> list[float]:
        """Return the seconds between each mark and the next; waits for the device."""
        wait(self._device)
        return [_between(a, b) for a, b in itertools.pairwise(self._marks)]


def _between(a: torch.cuda.Event | float, b: torch.cuda.Event | float) -> float:
    if isinstance(a, torch.cuda.Event) and isinstance(b, torch.cuda.Event):
        return float(a.elapsed_time(b)) / 1e3
    return float(b) - float(a)  # type: ignore[arg-type]


def timed_steps(
    runner: Runner, device: torch.device, *, warm_up: int, repeats: int
) -> Steps:
    """Take some steps, then as many as are timed, with nothing waited for between.

    Args:
        runner: Takes the steps.
        device: Where.
        warm_up: Steps that are not timed.
        repeats: Steps that are.
    """
    losses = [runner.step() for _ in range(warm_up)]
    restart_peak(device)
    dist.barrier()
    clock = Clock(device)
    clock.mark()
    for _ in range(repeats):
        losses.append(runner.step())
        clock.mark()
    seconds = clock.intervals()
    return Steps(
        seconds=seconds,
        peak_bytes=peak_bytes(device),
        losses=[float(loss) for loss in losses],
    )


def wait(device: torch.device) -> None:
    """Wait until the device has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def held_bytes(device: torch.device) -> int:
    """Return what the process holds on the device; 0 on a CPU."""
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def restart_peak(device: torch.device) -> None:
    """Wait, and begin to look for the peak of what is held on the device."""
    wait(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: torch.device) -> int:
    """Return the most that was held since then; 0 on a CPU."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def free(device: torch.device) -> None:
    """Give back what no variant holds any more."""
    for _ in range(2):  # DeepSpeed's bfloat16 parameters refer to themselves
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
