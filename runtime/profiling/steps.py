"""Profile some steps of an engine, and say what every module took."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rich.console import Console
from torch.profiler import ProfilerActivity, profile, schedule

from partitioner.errors import OptionError, PartitionerError, RuntimeGuardError
from partitioner.runtime.agreement import raise_on_all_ranks
from partitioner.runtime.host_group import HostGroup
from partitioner.runtime.profiling.attribution import own_times
from partitioner.runtime.profiling.module_times import (
    ModuleTimes,
    RankTimes,
    StepProfile,
    joined,
)
from partitioner.runtime.profiling.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["profile_steps"]


@contextmanager
def profile_steps(
    engine: Any,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    *,
    traces: str | os.PathLike[str] | None = None,
    show: bool = True,
) -> Iterator[StepProfile]:
    """Run torch.profiler over the training steps taken inside.

    Every rank must enter and leave it together. Each ``engine.train_batch`` is a step:
    ``wait`` of them are let by, ``warmup`` run under the profiler and are thrown away,
    ``active`` are counted; later ones are let by again. Every module whose call Python
    sees has its time, forward, backward and recomputed, under its path in the original
    model: on a GPU that of its kernels, else the host's. Nothing is there before and
    after.

    Args:
        engine: From ``plan.initialize``.
        wait: Steps to let by, the first of which compile and allocate.
        warmup: Steps under the profiler that do not count.
        active: Steps that count.
        traces: A folder for the profiler's own Chrome traces, ``rank0.json`` and so on;
            it is made if it is not there. None: no files.
        show: Whether rank 0 prints the table.

    Yields:
        What will have been found when the block ends, the same on all ranks.

    Raises:
        OptionError: A number of steps is too small.
        RuntimeGuardError: No step was taken that counts, or a trace cannot be written;
            on all ranks.
    """
    _check(wait, warmup, active)
    found = StepProfile()
    ranges = Ranges(engine)
    on_device = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if on_device:
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(
        activities=activities,
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
    )
    with ranges.installed(), profiler, _stepped(engine, profiler) as taken:
        yield found
    found.steps = _counted(taken[0], wait + warmup, active)
    found.clock = "time of kernels" if on_device else "the host's time"
    found.modules = _everyone(profiler, ranges, engine, on_device=on_device)
    if traces is not None:
        _write(profiler, Path(traces))
    if show and dist.get_rank() == 0:
        Console(highlight=False).print(found.table())


def _counted(taken: int, before: int, active: int) -> int:
    if taken <= before:
        raise RuntimeGuardError(
            f"{taken} training steps were taken while profiling; the first {before} do "
            "not count",
            hint=f"call engine.train_batch {before + active} times inside the with "
            "block",
        )
    return min(active, taken - before)


def _check(wait: int, warmup: int, active: int) -> None:
    for name, steps, least in (
        ("wait", wait, 0),
        ("warmup", warmup, 0),
        ("active", active, 1),
    ):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
            raise OptionError(
                f"profile_steps({name}={steps!r}): a number of steps",
                hint=f"give {least} or more",
            )


@contextmanager
def _stepped(engine: Any, profiler: profile) -> Iterator[list[int]]:
    """Tell the profiler where a step ends; count them."""
    taken = [0]
    train_batch = engine.train_batch

    def counted(*args: Any, **kwargs: Any) -> Any:
        loss = train_batch(*args, **kwargs)
        if engine.device.type == "cuda":
            torch.cuda.synchronize(engine.device)  # or its last kernels are lost
        taken[0] += 1
        profiler.step()
        return loss

    engine.train_batch = counted
    try:
        yield taken
    finally:
        del engine.train_batch  # the class's is there again


def _everyone(
    profiler: profile, ranges: Ranges, engine: Any, *, on_device: bool
) -> tuple[ModuleTimes, ...]:
    seconds, calls = own_times(profiler.events() or (), ranges, on_device=on_device)
    mine = RankTimes(seconds=dict(seconds), calls=dict(calls))
    hosts = getattr(engine, "hosts", None) or HostGroup()  # a plan's engine has one
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine, group=hosts.group)
    return joined(everyone)


def _write(profiler: profile, folder: Path) -> None:
    """Write this rank's trace, whole or not at all.

    Raises:
        RuntimeGuardError: It cannot be written; on all ranks.
    """
    name = f"rank{dist.get_rank()}.json"
    with raise_on_all_ranks("writing the profiler's traces"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _replace(profiler, folder / name, folder / f".{os.getpid()}-{name}")
        except OSError as error:
            message = f"{folder / name} could not be written: {error.strerror or error}"
            raise PartitionerError(message, hint="give another folder") from error


def _replace(profiler: profile, target: Path, aside: Path) -> None:
    try:
        profiler.export_chrome_trace(str(aside))
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
