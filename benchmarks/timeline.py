"""Recorded steps next to simulated ones, and what a plan by recorded times gains.

    torchrun --nproc-per-node 4 benchmarks/timeline.py

Layers sleep for as long as they are told, on CPU processes over gloo, so that what a
step should take is known. Printed are, for each schedule, even and uneven stages:
the simulator's step at the stages' measured times, next to the measured step; and how
far it is from each step if every pass, and under 1F1B every message, takes what it took
in that step. Then a
model whose third quarter takes 1.8 times as long as it was priced: the stage and the
ratio that the trace says, and the bubble before and after planning again. Last, what
recording costs: steps with and without, in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist

from partitioner.assess.predict import schedule_for
from partitioner.runtime.agreement import ensure_process_group
from partitioner.simulate import ChunkPrice, PipelinePrice, simulate
from partitioner.timeline import Trace, usage
from tests.distributed.sleeping import (
    LAYERS,
    Run,
    batch_of,
    engine_of,
    plan_of,
    record,
    train,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.simulate import Compute, Transfer
    from partitioner.timeline.trace_file import Interval

RATIO = 1.8
PASSES = ("forward", "backward")
ENDS = {
    "send activation": ("activation", 0),
    "receive activation": ("activation", -1),
    "send gradient": ("gradient", 0),
    "receive gradient": ("gradient", 1),
}
"""Kind of message at each end, and how far from the stage its sender is."""


def main() -> None:
    """Run everything, and print on rank 0."""
    options = _options()
    ensure_process_group()
    torch.set_num_threads(1)
    ranks, quarter = dist.get_world_size(), LAYERS // 4
    third = range(2 * quarter, 3 * quarter)
    base = Run(
        ranks=ranks,
        micro_batches=options.micro_batches,
        forward_s=options.forward_s,
        steps=options.steps,
    )
    with tempfile.TemporaryDirectory() as own:
        told = [own]
        dist.broadcast_object_list(told)
        folder = Path(told[0])
        for schedule in ("1f1b", "eager-1f1b", "dualpipev"):
            for factor in (1.0, RATIO):
                run = replace(base, schedule=schedule, slow=third, factor=factor)
                _simulated(run, folder)
        _replanned(replace(base, slow=third, factor=RATIO), folder)
        _overhead(base, folder)
        dist.barrier()
    dist.destroy_process_group()


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def _simulated(run: Run, folder: Path) -> None:
    """Compare the measured step with the simulator's at the measured stage times."""
    plan = plan_of(run)
    path = folder / "simulated.json"
    train(plan, run, path)
    found = usage(Trace.load(path))
    stayed = plan.replan(path).reassigned(plan)
    predicted_s = stayed.simulation.step_s
    exact = _with_own_times(Trace.load(path), run)
    _say(
        f"{run.schedule:10} stages x{run.factor}: "
        f"measured {found.step_s * 1e3:7.1f} ms, "
        f"simulated {predicted_s * 1e3:7.1f} ms, "
        f"{100 * (predicted_s / found.step_s - 1):+.1f} %; "
        f"all as it was {', '.join(f'{x:+.1f} %' for x in exact)}"
    )


@dataclass(frozen=True, kw_only=True)
class _OwnTimes(PipelinePrice):
    """What each pass took, and each message that had its rendezvous."""

    took_s: Mapping[tuple[str, int, int], float]
    message_s: Mapping[tuple[str, int, int], float]

    def compute_s(self, work: Compute) -> float:
        return self.took_s[work.kind, work.chunk, work.micro_batch]

    def transfer_s(self, transfer: Transfer) -> float:
        return self.message_s.get((*transfer[:2], transfer.micro_batch), 0.0)


def _messages_s(intervals: Iterable[Interval]) -> dict[tuple[str, int, int], float]:
    """Return what messages of 1F1B took: who comes later to one waits for nobody."""
    found: dict[tuple[str, int, int], float] = {}
    for each in intervals:
        if each.kind in ENDS:
            what, sender = ENDS[each.kind]
            key = (what, each.stage + sender, each.micro_batch)
            found[key] = min(found.get(key, each.took_s), each.took_s)
    return found


def _with_own_times(trace: Trace, run: Run) -> list[float]:
    """Return by how many percent the simulator misses each step, all as it was.

    Every pass takes what it took, and under 1F1B every message: what is gone is passes
    that took longer than the median, and messages.
    """
    stages, missed = trace.about.stages, []
    lists = schedule_for(run.schedule, stages, run.micro_batches)
    free = ChunkPrice(forward_s=0.0, input_gradient_s=0.0, weight_gradient_s=0.0)
    passes = [each for each in trace.intervals if each.kind in PASSES]
    for step in sorted({each.step for each in passes}):
        mine = [each for each in passes if each.step == step]
        waits = run.schedule == "1f1b"
        messages = [i for i in trace.intervals if i.step == step] if waits else []
        price = _OwnTimes(
            chunks=(free,) * stages,
            activation_s=(0.0,) * (stages - 1),
            gradient_s=(0.0,) * (stages - 1),
            message_s=_messages_s(messages),
            took_s={(i.kind, i.stage, i.micro_batch): i.took_s for i in mine},
        )
        took_s = max(i.end_s for i in mine) - min(i.start_s for i in mine)
        missed.append(100 * (simulate(lists, price).step_s / took_s - 1))
    return missed


def _replanned(run: Run, folder: Path) -> None:
    """Let the plan be made again by what the slow stage took."""
    record(run, folder)
    found = [usage(Trace.load(folder / f"{n}.json")) for n in ("before", "after")]
    before, after = found
    _say(
        f"third stage x{RATIO}: found stage {before.slowest.stage}, "
        f"x{before.unevenness:.2f}; bubble {100 * before.bubble_share:.1f} % → "
        f"{100 * after.bubble_share:.1f} %, step {before.step_s * 1e3:.1f} → "
        f"{after.step_s * 1e3:.1f} ms"
    )


def _overhead(run: Run, folder: Path) -> None:
    """Take steps with and without a recorder in turn."""
    plan = plan_of(run)
    engine: Any = engine_of(plan)
    engine.train_batch(iter(batch_of(run)))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(6):
        traced = turn % 2 == 1
        if traced:
            with plan.trace(engine, folder / "overhead.json"):
                seconds[True].append(_step_s(engine, run))
        else:
            seconds[False].append(_step_s(engine, run))
    plain_s, traced_s = (statistics.median(seconds[key]) for key in (False, True))
    _say(f"recording: {100 * (traced_s / plain_s - 1):+.2f} % of a step")
    engine.destroy()


def _step_s(engine: Any, run: Run) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    engine.train_batch(iter(batch_of(run)))
    return time.perf_counter() - began_s


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--forward-s", type=float, default=8e-3, help="of one layer")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
