"""Steps of all ranks → one file that Perfetto shows and the command line reads."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from partitioner.errors import RuntimeGuardError
from partitioner.files import write_whole
from partitioner.runtime.agreement import versions
from partitioner.runtime.host_group import HostGroup
from partitioner.runtime.timeline.clock import clock_offsets_s
from partitioner.runtime.timeline.events import trace_document
from partitioner.runtime.timeline.gpu_use import sampled
from partitioner.runtime.timeline.recorder import Recorder

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from partitioner.runtime.timeline.gpu_use import GpuUse

__all__ = ["Forecast", "trace_steps"]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a plan says of a step, to be written next to what was measured."""

    about: Mapping[str, Any] = field(default_factory=dict)
    """Of each stage the seconds of its passes, and of the step."""
    events: Sequence[Mapping[str, Any]] = ()
    """The simulated step as trace events, one process for each rank."""


@contextmanager
def trace_steps(
    engine: Any,
    path: str | os.PathLike[str],
    *,
    modules: bool = True,
    forecast: Forecast | None = None,
) -> Iterator[None]:
    """Record the training steps taken inside, and write them when it ends.

    Every rank must enter and leave it together; rank 0 writes the file. Recorded are,
    with their begin and end on the device: every instruction of the schedule (passes,
    messages, sums of gradients, the optimizer's step), recomputation within a
    backward, and the calls of modules that a stage runs whole; and how busy each GPU
    is, as its driver says. All times are on rank
    0's clock. Nothing is waited for meanwhile.

    Args:
        engine: From ``plan.initialize``.
        path: A JSON file for Perfetto (https://ui.perfetto.dev), ``chrome://tracing``
            and ``partitioner trace``.
        modules: Whether to time modules; compiled stages' are never timed.
        forecast: What was predicted, for the same file.

    Raises:
        RuntimeGuardError: No training step was taken inside; on all ranks.
        PartitionerError: The file cannot be written; on rank 0.
    """
    recorder = Recorder(engine, modules=modules)
    with sampled(engine.device) as use, recorder.installed():
        yield
    hosts = getattr(engine, "hosts", None) or HostGroup()  # a plan's engine has one
    group = hosts.group
    offsets_s = clock_offsets_s(group)
    mine = _Rank.of(recorder, engine, use)
    everyone: list[Any] | None = (
        [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    )
    dist.gather_object(mine, everyone, group=group)
    told = [bool(everyone) and any(rank.intervals for rank in everyone or ())]
    dist.broadcast_object_list(told, group=group)
    if not told[0]:
        raise RuntimeGuardError(
            "no training step was taken while recording",
            hint="call engine.train_batch inside the with block",
        )
    if everyone is not None:
        document = trace_document(
            [rank.shifted(offsets_s[i]) for i, rank in enumerate(everyone)],
            about={
                **_about(engine),
                "gpu_use": [rank.gpu_use for rank in everyone],
                **(forecast.about if forecast else {}),
            },
            predicted=forecast.events if forecast else (),
        )
        write_whole(Path(path), json.dumps(document) + "\n", "the trace")


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """What one rank recorded, in seconds of its own clock."""

    stage: int
    replica: int
    intervals: list[dict[str, Any]]
    gpu_use: dict[str, Any]

    @classmethod
    def of(cls, recorder: Recorder, engine: Any, use: GpuUse) -> _Rank:
        seconds = recorder.clock.seconds
        return cls(
            stage=int(engine.stage_id),
            replica=int(engine.grid.get_data_parallel_id()),
            intervals=[
                {
                    "kind": each.kind,
                    "step": each.step,
                    "stage": each.stage,
                    "micro_batch": each.micro_batch,
                    "start_s": seconds(each.start),
                    "end_s": seconds(each.end),
                    "module": each.module,
                    "peers": list(each.peers),
                }
                for each in recorder.intervals
                if each.end is not None
            ],
            gpu_use=use.take(),
        )

    def shifted(self, offset_s: float) -> dict[str, Any]:
        """Return the same on a clock that is ahead by so much."""
        moved = [
            {
                **each,
                "start_s": each["start_s"] + offset_s,
                "end_s": each["end_s"] + offset_s,
            }
            for each in self.intervals
        ]
        return {"stage": self.stage, "replica": self.replica, "intervals": moved}


def _about(engine: Any) -> dict[str, Any]:
    return {
        "ranks": dist.get_world_size(),
        "stages": int(engine.num_stages) * engine.module.stages_per_rank,
        "micro_batches": int(engine.micro_batches),
        "device": str(engine.device.type),
        "versions": versions(),
    }
