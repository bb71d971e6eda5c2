"""Kill a rank again and again, resume each time, and end where nobody was killed.

``python -m tests.distributed.kill_runs`` kills 20 times over 50 steps with SGD, with
AdamW, and with dropout; ``test_checkpoint_kills.py`` a few times over a few steps.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from partitioner.runtime.checkpoint.folders import CheckpointFolder, latest_tag
from partitioner.runtime.checkpoint.load import open_checkpoint, verify_files
from tests.distributed.launch import _PRELOAD, LaunchError, launch
from tests.distributed.resuming import (
    Outcome,
    Run,
    endless,
    make_engine,
    stage_state,
    whole,
)

EVERY = 5
CASES = {
    "SGD with momentum, 2 and 3 stages": (Run(), (2, 3)),
    "AdamW, 2 and 3 stages": (Run(optimizer="adamw"), (2, 3)),
    "SGD with dropout, 2 stages": (Run(dropout=0.3), (2,)),
}


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Which rank dies: at a step, before its n-th write to the disk from there on."""

    rank: int
    step: int
    write: int


def kills(count: int, steps: int, ranks: int, rng: random.Random) -> list[Kill]:
    """Return random kills in the order of their steps, every other one in a save."""
    found = []
    for index in range(count):
        rank = rng.randrange(ranks)
        if index % 2:
            # A save is 7 writes at least, and 19 on the rank that puts it into place.
            step = EVERY * rng.randint(1, steps // EVERY)
            write = rng.randint(1, 7 if rank else 19)
        else:
            step, write = rng.randint(1, steps - 1), 0
        found.append(Kill(rank=rank, step=step, write=write))
    return sorted(found, key=lambda kill: (kill.step, kill.write))


def until(run: Run, root: Path, steps: int, kill: Kill | None) -> Outcome:
    """Train to a step, from the last checkpoint, saving regularly; maybe die."""
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    engine, loader = make_engine(run)
    torch.manual_seed(17 + dist.get_rank())
    engine.load_checkpoint(root)
    outcome, data = Outcome(losses=[]), endless(loader)
    while engine.global_steps < steps:
        outcome.losses.append(engine.train_batch(data).item())
        if kill is not None and engine.global_steps == kill.step:
            _arm(kill, root)
        if engine.global_steps % EVERY == 0:
            engine.save_checkpoint(root)
    outcome.state = stage_state(engine)
    engine.destroy()
    dist.barrier()
    return outcome


def _arm(kill: Kill, root: Path) -> None:
    """Kill this process now, or before some later write of its own."""
    if dist.get_rank() != kill.rank:
        return
    if kill.write == 0:
        _die(root)
    left = [kill.write]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                _die(root)
            return function(*arguments, **options)

        return called

    os.fsync = counted(os.fsync)
    torch.save = counted(torch.save)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]


def _die(root: Path) -> None:
    _mark(root).touch()
    os.kill(os.getpid(), signal.SIGKILL)


def _mark(root: Path) -> Path:
    return root.with_name(f"{root.name}-killed")


def survive(
    run: Run, root: Path, steps: int, planned: list[Kill], stages: tuple[int, ...]
) -> list[Outcome]:
    """Run to the end through all kills, on numbers of stages in turn.

    Returns:
        What the ranks of the last run had.
    """
    root.mkdir()
    for index, kill in enumerate(planned):
        count = stages[index % len(stages)]
        now = replace(kill, rank=kill.rank % count)
        with pytest.raises(LaunchError):
            start(replace(run, stages=count), root, steps, now)
        _mark(root).unlink()  # it was the kill and nothing else
        check(root)
    count = stages[len(planned) % len(stages)]
    return start(replace(run, stages=count), root, steps, None)


def start(run: Run, root: Path, steps: int, kill: Kill | None) -> list[Outcome]:
    """Launch the ranks; again if another program has taken the port meanwhile."""
    for _ in range(3):
        try:
            return launch(run.stages, until, run, root, steps, kill, timeout_s=280)
        except LaunchError as error:  # noqa: PERF203 - three times at most
            if "EADDRINUSE" not in str(error):
                raise
    raise LaunchError("no free port")


def check(root: Path) -> None:
    """Whatever has happened, what ``latest`` names is whole."""
    tag = latest_tag(root)
    if tag is not None:
        path, manifest, _ = open_checkpoint(CheckpointFolder(root, tag))
        verify_files(path, manifest)


def distance(one: list[Outcome], other: list[Outcome]) -> tuple[float, float]:
    """Return the largest differences of the last losses, and of any parameter."""
    mine, theirs = whole(one), whole(other)
    assert mine.keys() == theirs.keys()
    parameters = max(
        (mine[name].double() - theirs[name].double()).abs().max().item()
        for name in mine
    )
    count = min(len(one[0].losses), len(other[0].losses))
    if not count:
        return 0.0, parameters
    pairs = zip(one[0].losses[-count:], other[0].losses[-count:], strict=True)
    return max(abs(a - b) for a, b in pairs), parameters


def main(seed: int = 0, count: int = 20, steps: int = 50) -> None:
    _PRELOAD.append("tests.distributed.kill_plans")
    for name, (run, stages) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            roots = [Path(folder) / "calm", Path(folder) / "killed"]
            calm = start(run, roots[0], steps, None)
            planned = kills(count, steps, 2, random.Random(seed))
            last = survive(run, roots[1], steps, planned, stages)
            losses, parameters = distance(calm, last)
        sys.stdout.write(
            f"{name}: {len(planned)} kills; losses within {losses:.1e} over the last "
            f"{len(last[0].losses)} steps, parameters within {parameters:.1e}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
