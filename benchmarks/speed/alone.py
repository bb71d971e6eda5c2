"""A stage of a pipeline alone: its passes without the engine, and what they take."""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.speed.timing import Clock, peak_bytes, restart_peak, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.speed.sums import Sums

__all__ = ["Alone", "Stage", "run_alone"]

WARM_UP = 3
"""Micro-batches, at the least, before any is timed."""
SUSTAINED_S = 0.5
"""A GPU runs for so long before: under load, which in training does not end, it lowers
its clock."""
REPEATS = 16
"""Micro-batches that are timed, one after another."""
HOST_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage, as its engine runs it.

    Args:
        forward: From what the stage receives to what it sends, or what its loss takes.
        loss: Of that and the labels; None: the stage is not the last.
        sums: Where the gradients of micro-batches are added up.
        is_first: It receives the model's inputs, whose gradient nobody wants.
    """

    forward: Callable[[Any], Any]
    loss: Callable[[Any, Any], Tensor] | None
    sums: Sums
    is_first: bool

    def make(self, received: Any, labels: Any) -> Any:
        """Run a forward; return what is sent, or the loss, with its graph."""
        made = self.forward(_taken(received, wanted=not self.is_first))
        return made if self.loss is None else self.loss(made, labels)

    def passes(
        self, received: Any, labels: Any, gradients: Sequence[Tensor | None]
    ) -> Iterator[None]:
        """Run one micro-batch in three parts: forward, backward, the gradients' sums.

        Args:
            received: What the stage before has sent, or the model's inputs.
            labels: For the loss.
            gradients: Of each tensor that is sent and has one; of a loss: None.
        """
        roots = _trained(self.make(received, labels))
        yield
        self.sums.backward_prologue()
        torch.autograd.backward(roots, gradients)
        yield
        self.sums.backward_epilogue()
        yield


@dataclass(frozen=True, kw_only=True)
class Alone:
    """What a stage took alone."""

    seconds: float
    """Median from one micro-batch to the next, launched without waiting between."""
    host_s: float
    """Median that the host needs to launch one on an idle device.

    Forward, backward and sums are timed apart, each after a wait: a queue of launches
    (1,024 on NVIDIA's) that is full would have the host wait for its device. Where one
    part of a stage has more launches than that, and the device is the slower one, this
    is too long. On a CPU, which does the work itself, it is all of its time.
    """
    peak_bytes: int
    """The most that the process held on the device meanwhile; 0 on a CPU."""
    made: Any
    """What the stage sends, or its loss; without a graph."""


def run_alone(
    stage: Stage,
    received: Any,
    labels: Any,
    device: torch.device,
    *,
    repeats: int = REPEATS,
) -> Alone:
    """Run one micro-batch on a stage again and again, as in training.

    The gradients that the next stage would send are stood in for by what is sent to it:
    numbers of the same form, and as arbitrary as activations are.

    Args:
        stage: Runs on ``device``.
        received: What the stage before has sent, or the model's inputs.
        labels: For the last stage's loss.
        device: Where it all is.
        repeats: Micro-batches to time.
    """
    made = stage.make(received, labels)
    sent = stage.loss is None
    gradients = [each.detach().clone() if sent else None for each in _trained(made)]

    def passes() -> Iterator[None]:
        return stage.passes(received, labels, gradients)

    _warm_up(passes, device)
    restart_peak(device)
    clock = Clock(device)
    clock.mark()
    for _ in range(repeats):
        _run(passes())
        clock.mark()
    seconds = statistics.median(clock.intervals())
    return Alone(
        seconds=seconds,
        host_s=_host_s(passes, device),
        peak_bytes=peak_bytes(device),
        # Made now: by then a stage that is replayed is.
        made=pytree.tree_map(_copied, stage.make(received, labels)),
    )


def _warm_up(passes: Callable[[], Iterator[None]], device: torch.device) -> None:
    enough_s = SUSTAINED_S if device.type == "cuda" else 0.0
    began, count = time.perf_counter(), 0
    while count < WARM_UP or time.perf_counter() - began < enough_s:
        _run(passes())
        wait(device)
        count += 1


def _host_s(passes: Callable[[], Iterator[None]], device: torch.device) -> float:
    found = [_launching_s(passes(), device) for _ in range(HOST_REPEATS)]
    return statistics.median(found)


def _launching_s(parts: Iterator[None], device: torch.device) -> float:
    """Return what the host needs to launch all parts, without what it waits."""
    total_s = 0.0
    while True:
        wait(device)
        began = time.perf_counter()
        ended = next(parts, _END) is _END
        total_s += time.perf_counter() - began
        if ended:
            return total_s


_END = object()


def _run(parts: Iterator[None]) -> None:
    deque(parts, maxlen=0)


def _taken(received: Any, *, wanted: bool) -> Any:
    """Return what a forward is given: DeepSpeed's engine copies what was received."""

    def take(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        mine = value.detach()
        return mine.requires_grad_(wanted and mine.is_floating_point()).clone()

    return pytree.tree_map(take, received)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _trained(made: Any) -> list[Tensor]:
    """Return the tensors that need a gradient."""
    leaves = pytree.tree_leaves(made)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
