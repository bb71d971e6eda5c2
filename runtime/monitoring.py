"""Write bubble, stage times and memory to DeepSpeed's monitor, each so many steps."""

from __future__ import annotations

import logging
import resource
from collections import defaultdict
from contextlib import contextmanager
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from partitioner.errors import OptionError
from partitioner.runtime.timeline.clock import Clock
from partitioner.runtime.timeline.gpu_use import GpuUse
from partitioner.runtime.timeline.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Monitoring"]

_log = logging.getLogger(__name__)

TAG = "Train/Pipeline"
"""Next to DeepSpeed's own ``Train/Samples``."""
_GIB = 2**30
_PASSES = ("forward", "backward")

_Event = tuple[str, float, int]


class Monitoring(PipelineEngine):
    """An engine that tells DeepSpeed's monitor where the time of a step goes."""

    _monitored: _Monitored | None = None

    def start_monitoring(self, *, every: int = 10) -> None:
        """Write, from now on, what each so-many-th step took; every rank must call.

        Args:
            every: Steps between two that are recorded.

        Raises:
            OptionError: ``every`` is no number of steps, or the configuration switches
                no monitor on.
        """
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise OptionError(
                f"every={every!r}: a number of steps", hint="give 1 or more"
            )
        if not self.monitor.enabled:
            raise OptionError(
                "the configuration switches no monitor on: nowhere to write",
                hint='give plan.initialize config={"tensorboard": {"enabled": True, '
                '"output_path": "runs", "job_name": "mine"}}, or csv_monitor or wandb',
            )
        self.stop_monitoring()
        self._monitored = _Monitored(self, every)

    def stop_monitoring(self) -> None:
        """Write no more."""
        if self._monitored is not None:
            self._monitored.use.stop()
            self._monitored = None

    def destroy(self) -> None:
        """Let go of everything, as DeepSpeed does."""
        self.stop_monitoring()
        super().destroy()

    @contextmanager
    def step_monitored(self) -> Iterator[None]:
        """Record the step inside, if it is its turn."""
        monitored = self._monitored
        if monitored is None or (self.global_steps + 1) % monitored.every:
            yield
            return
        recorder = Recorder(self, modules=False, clock=monitored.clock)
        with recorder.installed():
            yield
        mine = monitored.found(recorder, self)
        ranks: list[Any] | None = (
            [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        )
        dist.gather_object(mine, ranks, group=self.hosts.group)
        if ranks is not None:
            self.monitor.write_events(list(_events(ranks, self.global_samples)))


class _Monitored:
    """How often an engine is recorded, and by what."""

    def __init__(self, engine: Any, every: int) -> None:
        self.every = every
        self.clock = Clock(engine.device)
        self.use = GpuUse(engine.device)
        if engine.device.type == "cuda" and self.use.not_sampled:
            _log.warning(
                "rank %d's GPU use is not written: %s",
                engine.global_rank,
                self.use.not_sampled,
            )

    def found(self, recorder: Recorder, engine: Any) -> dict[str, Any]:
        """Return what this rank says of a step, as plain data."""
        took: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        marks: list[float] = []
        for each in recorder.intervals:
            if each.kind in (*_PASSES, "recompute"):
                ends_s = self.clock.seconds(each.start), self.clock.seconds(each.end)
                took[each.kind][each.stage].append(ends_s[1] - ends_s[0])
                marks += ends_s
        return {
            "medians_s": {
                kind: {stage: median(s) for stage, s in stages.items()}
                for kind, stages in took.items()
            },
            "compute_s": sum(sum(s) for kind in _PASSES for s in took[kind].values()),
            "window_s": max(marks) - min(marks),
            "memory": _memory(engine.device),
            "use": self.use.take(),
        }


def _memory(device: torch.device) -> tuple[str, float]:
    """Return the most memory that was held since the start, in GiB, and its name."""
    if device.type == "cuda":
        held_bytes = torch.cuda.max_memory_allocated(device)
        return "peak_memory_gib", held_bytes / _GIB
    held_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return "peak_host_memory_gib", held_bytes / _GIB


def _events(ranks: Sequence[Mapping[str, Any]], samples: int) -> Iterator[_Event]:
    """Yield scalars as DeepSpeed's monitors take them: tag, value, samples so far."""
    # The rank that begins a step also ends it, so no clocks need be compared.
    step_s = max(rank["window_s"] for rank in ranks)
    bubbles = [1 - rank["compute_s"] / step_s for rank in ranks]
    yield f"{TAG}/step_s", step_s, samples
    yield f"{TAG}/bubble_share", fmean(bubbles), samples
    for stage, kinds in sorted(_by_stage(ranks).items()):
        for kind, took_s in kinds.items():
            yield f"{TAG}/stage_{stage}/{kind}_s", fmean(took_s), samples
    for number, (rank, bubble) in enumerate(zip(ranks, bubbles, strict=True)):
        name, held_gib = rank["memory"]
        yield f"{TAG}/rank_{number}/bubble_share", bubble, samples
        yield f"{TAG}/rank_{number}/{name}", held_gib, samples
        if "mean" in rank["use"]:
            yield f"{TAG}/rank_{number}/gpu_use_share", rank["use"]["mean"], samples


def _by_stage(
    ranks: Iterable[Mapping[str, Any]],
) -> dict[int, dict[str, list[float]]]:
    """Return the medians of every stage's passes, one for each replica."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for kind, stages in rank["medians_s"].items():
            for stage, took_s in stages.items():
                found[stage][kind].append(took_s)
    return found
