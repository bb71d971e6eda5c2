"""1F1B next to eager 1F1B, on stages that take as long as they are told, with jitter.

    torchrun --nproc-per-node 4 benchmarks/schedules.py

Layers sleep on CPU processes over gloo. For stages that are even, uneven (the third
takes 1.3 times as long) and whose passes jitter, both schedules take steps in turn;
printed are the median steps and what the second saves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import replace
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist

from partitioner.runtime.agreement import ensure_process_group
from tests.distributed.sleeping import LAYERS, Run, batch_of, engine_of, plan_of

SCHEDULES = ("1f1b", "eager-1f1b")
UNEVEN = 1.3


def main() -> None:
    """Run every case, and print on rank 0."""
    options = _options()
    ensure_process_group()
    torch.set_num_threads(1)
    quarter = LAYERS // 4
    base = Run(
        ranks=dist.get_world_size(),
        micro_batches=options.micro_batches,
        forward_s=options.forward_s,
        slow=range(2 * quarter, 3 * quarter),
    )
    for factor in (1.0, UNEVEN):
        for jitter in options.jitter:
            _compared(replace(base, factor=factor, jitter=jitter), options.steps)
    dist.destroy_process_group()


def _compared(run: Run, steps: int) -> None:
    """Let both schedules take steps in turn."""
    plans = {name: plan_of(replace(run, schedule=name)) for name in SCHEDULES}
    engines = {name: engine_of(plan) for name, plan in plans.items()}
    took_s: dict[str, list[float]] = {name: [] for name in SCHEDULES}
    for turn in range(steps + 1):
        for name, engine in engines.items():
            step_s = _step_s(engine, run)
            if turn:  # the first exchanges shapes
                took_s[name].append(step_s)
    waiting_s, ahead_s = (statistics.median(took_s[name]) for name in SCHEDULES)
    if dist.get_rank() == 0:
        print(
            f"stages x{run.factor}, jitter {run.jitter:.1f} of a layer: "
            f"1f1b {waiting_s * 1e3:7.1f} ms, eager-1f1b {ahead_s * 1e3:7.1f} ms, "
            f"{100 * (ahead_s / waiting_s - 1):+.1f} %",
            flush=True,
        )
    for engine in engines.values():
        engine.destroy()


def _step_s(engine: Any, run: Run) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    engine.train_batch(iter(batch_of(run)))
    dist.barrier()
    return time.perf_counter() - began_s


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--forward-s", type=float, default=4e-3, help="of one layer")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument(
        "--jitter", type=float, nargs="*", default=[0.0, 0.5, 1.0], help="of a layer"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
