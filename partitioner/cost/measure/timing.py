"""Seconds of one call and of its backward, on a GPU's clock or the CPU's."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partitioner.cost.measurements import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Call", "Timer"]

_WARM_UP = 4
_REPEATS = 21
_BUDGET_S = 1.0
"""What one call may be repeated for; at least ``_FEWEST`` repeats are taken."""
_FEWEST = 5
_SUSTAINED_S = 0.4
"""A block runs for at least so long, and the second half counts: a GPU lowers its
clock under load, and in training the load does not end."""
_AHEAD = 4
_MARGIN = 1.5
"""A GPU is kept busy so many times as long as the host needs to start a call."""
_IN_A_ROW = 2
"""Calls that the host launches one after the other while its own time is taken."""
_CACHE_BYTES = 2**28
"""Written between two runs of one operation, so that none finds its inputs in the
cache: more than the last-level cache of any device here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Something to time.

    Args:
        run: Takes what ``inputs`` made.
        inputs: Makes the arguments anew, outside of what is timed.
        leaves: Tensors whose gradient backward computes.
    """

    run: Callable[[Any], Any]
    inputs: Callable[[], Any]
    leaves: tuple[Tensor, ...] = ()


class Timer:
    """Times calls on one device.

    Args:
        device: ``cuda`` or ``cpu``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        size = _CACHE_BYTES if self._on_gpu else 0
        self._cache = torch.empty(size, dtype=torch.uint8, device=device)
        self._gradients: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}
        self._flush_s = self._flush_time_s()
        self._flushes = 1
        self._idle = Timing(forward_s=0.0)
        nothing = _idle_call(device)
        self._idle = self.time(nothing, alone=True)
        if self._on_gpu:
            idle_s = self._launching_s(nothing, backward=True)
            self._idle = replace(self._idle, host_s=idle_s)

    def time(self, call: Call, *, alone: bool) -> Timing:
        """Return the median seconds of a call, warm.

        Args:
            call: What to run.
            alone: With a cold cache (a single operation); else under the load of
                training, and with the host's own time as well (a block).

        Raises:
            Exception: Whatever the call raises.
        """
        self._gradients.clear()
        backward = bool(call.leaves)
        start_s = self._start_s(call, backward=backward) if self._on_gpu else 0.0
        self._flushes = self._needed(start_s) if alone else 0
        found = self._medians(call, alone=alone, backward=backward)
        if not alone and sum(found) < _MARGIN * start_s:
            # The device may have waited for the host, which in a stage is ahead of it
            # wherever other blocks have longer kernels.
            self._flushes = self._needed(start_s)
            found = self._medians(call, alone=alone, backward=backward)
        host_s = 0.0
        if alone:  # the clock and an empty graph take time of their own
            idle = self._idle.forward_s, self._idle.backward_s
            found = tuple(max(0.0, a - b) for a, b in zip(found, idle, strict=True))
        elif self._on_gpu:
            launching_s = self._launching_s(call, backward=backward)
            host_s = max(0.0, launching_s - self._idle.host_s)
        return Timing(forward_s=found[0], backward_s=found[1], host_s=host_s)

    def _needed(self, start_s: float) -> int:
        """Return how many flushes last longer than the host needs for a call."""
        return 1 + math.ceil(_MARGIN * start_s / self._flush_s)

    def _medians(self, call: Call, *, alone: bool, backward: bool) -> tuple[float, ...]:
        """Return the median seconds of forward and of backward."""
        samples = list(self._samples(call, alone=alone, backward=backward))
        return tuple(statistics.median(part) for part in zip(*samples, strict=True))

    def _flush_time_s(self) -> float:
        """Return what writing the cache takes; any number on the CPU, which waits."""
        if not self._on_gpu:
            return 1.0
        self._cache.zero_()
        before = self._mark()
        for _ in range(_REPEATS):
            self._cache.zero_()
        after = self._mark()
        torch.cuda.synchronize(self._device)
        return _elapsed_s(before, after) / _REPEATS

    def _launching_s(self, call: Call, *, backward: bool) -> float:
        """Return the host's median seconds for a call that follows another.

        As in a stage, where nothing waits between layers. So few in a row that the
        queue of launches, 1,024 on NVIDIA's, does not fill: the host would wait for the
        device.
        """
        found = []
        for _ in range(_FEWEST):
            torch.cuda.synchronize(self._device)
            self._once(call, cold=False, backward=backward)
            started = time.perf_counter()
            for _ in range(_IN_A_ROW):
                self._once(call, cold=False, backward=backward)
            found.append((time.perf_counter() - started) / _IN_A_ROW)
        return statistics.median(found)

    def _start_s(self, call: Call, *, backward: bool) -> float:
        """Return the host's median seconds to start a call on an idle device."""
        found = []
        for _ in range(_WARM_UP + _FEWEST):
            torch.cuda.synchronize(self._device)
            started = time.perf_counter()
            self._once(call, cold=False, backward=backward)
            found.append(time.perf_counter() - started)
        return statistics.median(found[_WARM_UP:])

    def _samples(
        self, call: Call, *, alone: bool, backward: bool
    ) -> Iterator[tuple[float, float]]:
        cold = alone and self._on_gpu
        marks: list[tuple[Any, ...]] = []
        started = time.perf_counter()
        while not self._enough(len(marks), started, alone=alone):
            for _ in range(self._flushes):
                self._flush(cold=self._on_gpu)
            marks.append(self._once(call, cold=cold, backward=backward))
            self._keep_pace(marks)
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        steady = marks[_WARM_UP:] if alone else marks[len(marks) // 2 :]
        for before, middle, between, after in steady:
            yield _elapsed_s(before, middle), _elapsed_s(between, after)

    def _enough(self, taken: int, started: float, *, alone: bool) -> bool:
        spent_s = time.perf_counter() - started
        if taken < _WARM_UP + _FEWEST:
            return False
        if spent_s > _BUDGET_S:
            return True
        return taken >= _WARM_UP + _REPEATS and (alone or spent_s > _SUSTAINED_S)

    def _keep_pace(self, marks: Sequence[tuple[Any, ...]]) -> None:
        """Let the host run ahead by a few calls, not by all of them."""
        if self._on_gpu and len(marks) > _AHEAD:
            marks[-_AHEAD][-1].synchronize()

    def _once(self, call: Call, *, cold: bool, backward: bool) -> tuple[Any, ...]:
        inputs = call.inputs()
        self._flush(cold=cold)
        with torch.set_grad_enabled(backward):
            before = self._mark()
            result = call.run(inputs)
            middle = self._mark()
        if not backward:
            return before, middle, middle, middle
        roots = [one for one in tree_leaves(result) if _trains(one)]
        gradients = [self._gradient(root) for root in roots]
        self._flush(cold=cold)
        between = self._mark()
        if roots:
            # Not backward(): that copies gradients which no engine would copy.
            torch.autograd.grad(roots, call.leaves, gradients, allow_unused=True)
        return before, middle, between, self._mark()

    def _gradient(self, root: Tensor) -> Tensor:
        """Return random numbers like ``root``: constant data draws less power."""
        key = (tuple(root.shape), root.dtype)
        if key not in self._gradients:
            self._gradients[key] = torch.randn_like(root)
        return self._gradients[key]

    def _flush(self, *, cold: bool) -> None:
        if cold:
            self._cache.zero_()

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _idle_call(device: torch.device) -> Call:
    """Return a call that runs no kernel, forward or backward."""
    leaf = torch.ones((), device=device, requires_grad=True)
    return Call(run=lambda x: x.view_as(x), inputs=lambda: leaf, leaves=(leaf,))


def _elapsed_s(before: Any, after: Any) -> float:
    if isinstance(before, float):
        return float(after - before)
    milliseconds: float = before.elapsed_time(after)
    return milliseconds / 1e3


def _trains(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
