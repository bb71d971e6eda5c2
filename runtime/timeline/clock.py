"""Moments on a rank's device, and how far the clocks of ranks are apart."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Clock", "Mark", "clock_offsets_s"]

ROUNDS = 16
"""Messages there and back for each rank: the quickest counts."""

Mark = Any
"""A moment: a CUDA event, or seconds of the host's clock."""


class Clock:
    """Marks moments without waiting for the device.

    On a GPU a mark is an event on the current stream, so it says when the device came
    to it and not when the host did. Elsewhere it is the host's clock.

    Args:
        device: Where the stage runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            torch.cuda.synchronize(device)
        self._first = self.mark()
        if self._on_gpu:
            self._first.synchronize()
        self._host_s = time.perf_counter()

    def mark(self) -> Mark:
        """Return this moment."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, mark: Mark) -> float:
        """Return a moment in seconds of the host's clock, once the device is there."""
        if not self._on_gpu:
            return float(mark)
        mark.synchronize()
        return self._host_s + float(self._first.elapsed_time(mark)) / 1e3


def clock_offsets_s(group: dist.ProcessGroup | None) -> list[float]:
    """Return what to add to each rank's clock to have rank 0's; every rank must call.

    Half of the quickest way there and back, which bounds the error: F. Cristian,
    *Probabilistic Clock Synchronization*, Distributed Computing 3, 1989, section 3.

    Args:
        group: Of all ranks, on the hosts.
    """
    found = [0.0] * dist.get_world_size()
    for rank in range(1, len(found)):
        if dist.get_rank() == 0:
            found[rank] = _offset_s(rank, group)
        elif dist.get_rank() == rank:
            _answer(group)
    told: list[Any] = [found]
    dist.broadcast_object_list(told, group=group)
    offsets_s: list[float] = told[0]
    return offsets_s


def _offset_s(rank: int, group: dist.ProcessGroup | None) -> float:
    tries = []
    answer = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        asked_s = time.perf_counter()
        dist.send(answer, rank, group=group)
        dist.recv(answer, rank, group=group)
        back_s = time.perf_counter()
        middle_s = (asked_s + back_s) / 2
        tries.append((back_s - asked_s, middle_s - answer.item()))
    return min(tries)[1]


def _answer(group: dist.ProcessGroup | None) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(question, 0, group=group)
        now_s = torch.tensor([time.perf_counter()], dtype=torch.float64)
        dist.send(now_s, 0, group=group)
