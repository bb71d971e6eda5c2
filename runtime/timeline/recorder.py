"""Time every instruction of an engine's schedule, and what runs inside of it."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.pipe import schedule as deepspeed

from partitioner.runtime.instructions import (
    stage_of,
    watched_instructions,
    watched_recomputation,
)
from partitioner.runtime.timeline.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import nn

    from partitioner.runtime.segment import Segment
    from partitioner.runtime.timeline.clock import Mark

__all__ = ["Interval", "Recorder"]

_KINDS: dict[type, str] = {
    deepspeed.LoadMicroBatch: "load",
    deepspeed.ForwardPass: "forward",
    deepspeed.BackwardPass: "backward",
    deepspeed.SendActivation: "send activation",
    deepspeed.RecvActivation: "receive activation",
    deepspeed.SendGrad: "send gradient",
    deepspeed.RecvGrad: "receive gradient",
    deepspeed.CommitP2P: "exchange",
    deepspeed.ReduceTiedGrads: "sum tied gradients",
    deepspeed.ReduceGrads: "sum gradients",
    deepspeed.OptimizerStep: "optimizer step",
}
_PEERS = {
    "receive activation": -1,
    "send activation": 1,
    "receive gradient": 1,
    "send gradient": -1,
}
"""Where the other end of a message is, in stages."""
MODULES_EVERY = 4
"""In one of so many micro-batches modules are timed, the first time in the second: for
medians that is enough, and each call costs the host two marks."""


@dataclass(slots=True)
class Interval:
    """Something that took time on this rank."""

    kind: str
    """One of DeepSpeed's instructions in words, ``"recompute"``, or ``"module"``."""
    step: int
    stage: int
    micro_batch: int
    start: Mark
    end: Mark = None
    module: str = ""
    """Path of a module that was called whole."""
    peers: tuple[int, ...] = ()
    """Stages that it had to wait for."""


class Recorder:
    """Records the training steps that an engine takes while it is installed.

    Args:
        engine: A pipeline engine.
        modules: Whether to time the modules that the stages call whole.
        clock: What to mark moments with; None: a new one, for which the device is
            waited for.
    """

    def __init__(
        self, engine: Any, *, modules: bool, clock: Clock | None = None
    ) -> None:
        self._engine = engine
        self._modules = modules
        self._clock = clock or Clock(engine.device)
        self.intervals: list[Interval] = []
        self._running: list[Interval] = []
        self._seen: Counter[tuple[str, int]] = Counter()
        self._step = -1
        self._queued: list[int] = []

    @property
    def clock(self) -> Clock:
        """What the marks are of."""
        return self._clock

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Record while this lasts."""
        with ExitStack() as stack:
            stack.enter_context(watched_instructions(self._engine, self._timed))
            for layer in self._engine.module.local_layers():
                stack.enter_context(self._watched(layer))
            yield

    def _timed(self, what: type, run: Callable[..., Any]) -> Callable[..., Any]:
        kind = _KINDS.get(what, what.__name__)

        def instruction(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if not engine.module.training:
                return run(engine, *args, **kwargs)
            stage = stage_of(engine, kwargs.get("phase", 0))
            with self._interval(kind, stage, peers=self._waits_for(kind, stage)):
                return run(engine, *args, **kwargs)

        return instruction

    def _waits_for(self, kind: str, stage: int) -> tuple[int, ...]:
        """Return the stages at the other end; of a commit, those of what was queued."""
        if kind == "exchange":
            queued, self._queued = tuple(dict.fromkeys(self._queued)), []
            return queued
        if kind not in _PEERS:
            return ()
        peer = stage + _PEERS[kind]
        self._queued.append(peer)
        return (peer,)

    @contextmanager
    def _interval(
        self, kind: str, stage: int, *, peers: tuple[int, ...] = (), module: str = ""
    ) -> Iterator[None]:
        found = Interval(
            kind=kind,
            step=self._engine.global_steps,
            stage=stage,
            micro_batch=self._number(kind, stage),
            start=self._clock.mark(),
            peers=peers,
            module=module,
        )
        self.intervals.append(found)
        self._running.append(found)
        try:
            yield
        finally:
            self._running.pop()
            found.end = self._clock.mark()

    def _number(self, kind: str, stage: int) -> int:
        """Return the micro-batch: in each kind they come in order."""
        if self._running:
            return self._running[-1].micro_batch
        if self._step != self._engine.global_steps:
            self._step = self._engine.global_steps
            self._seen.clear()
        number = self._seen[kind, stage]
        self._seen[kind, stage] += 1
        return number

    # -- inside of passes

    @contextmanager
    def _watched(self, layer: Segment) -> Iterator[None]:
        handles: list[torch.utils.hooks.RemovableHandle] = []
        if self._modules and not (layer.is_compiled or layer.is_replayed):
            for path, module in layer.whole_modules.items():
                handles += self._hooked(path, module)
        try:
            with watched_recomputation(layer, self._recomputation):
                yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _recomputation(self) -> Iterator[None]:
        if not self._running:
            yield
            return
        with self._interval("recompute", self._running[-1].stage):
            yield

    def _hooked(
        self, path: str, module: nn.Module
    ) -> Iterator[torch.utils.hooks.RemovableHandle]:
        open_calls: list[Interval] = []
        yield module.register_forward_pre_hook(partial(self._begin, path, open_calls))
        yield module.register_forward_hook(
            partial(self._end, open_calls), always_call=True
        )

    def _begin(self, path: str, open_calls: list[Interval], *_: Any) -> None:
        if not self._running or not self._times_modules():
            return
        outer = self._running[-1]
        found = Interval(
            kind="module",
            step=outer.step,
            stage=outer.stage,
            micro_batch=outer.micro_batch,
            start=self._clock.mark(),
            module=path,
        )
        open_calls.append(found)

    def _times_modules(self) -> bool:
        """Return whether this micro-batch is one whose modules are timed."""
        first = 1 if self._engine.micro_batches > 1 else 0
        return self._running[-1].micro_batch % MODULES_EVERY == first

    def _end(self, open_calls: list[Interval], *_: Any) -> None:
        if open_calls:
            found = open_calls.pop()
            found.end = self._clock.mark()
            self.intervals.append(found)
