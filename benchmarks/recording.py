"""What recording costs on this machine's devices, and what it says of a model there.

    torchrun --nproc-per-node 2 benchmarks/recording.py --out results

Steps of one plan are taken in turn with and without ``plan.trace``, a few at a time so
that the host runs ahead of the device as in training. Then the report of the last
recording is printed, the table of ``profile_steps``, and what a monitor was told.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rich.console import Console

from benchmarks.speed.ours import Planner
from benchmarks.speed.ranks import join
from benchmarks.speed.registry import WORKLOADS
from benchmarks.speed.setting import QUIET, Setting
from partitioner.report.usage import usage_report
from partitioner.runtime.profiling import profile_steps
from partitioner.timeline import Trace, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner import Plan


def main() -> None:
    """Run everything, and print on rank 0."""
    options = _options()
    device = join(options.device)
    dtype = torch.bfloat16
    workload = WORKLOADS[options.model](tiny=device.type == "cpu", dtype=dtype)
    setting = Setting(
        workload=workload,
        device=device,
        dtype=dtype,
        micro_batches=options.micro_batches,
    )
    planner = Planner(setting, options.out, stages=dist.get_world_size())
    plan = planner.plan(compiled=options.compiled, whole_layers=False)
    curves = options.out / "curves"
    monitor = {"enabled": True, "output_path": str(curves), "job_name": "recording"}
    config = {**QUIET, "csv_monitor": monitor}
    runner = planner.run(plan, compiled=options.compiled, config=config)
    for _ in range(2):
        runner.step()
    _overhead(plan, runner.engine, runner.step, options)
    with profile_steps(runner.engine, wait=0):
        for _ in range(4):
            runner.step()
    runner.engine.start_monitoring(every=2)
    for _ in range(4):
        runner.step()
    runner.close()
    _show(options.out / "recorded.json", curves)
    setting.close()
    dist.destroy_process_group()


def _overhead(
    plan: Plan, engine: Any, step: Callable[[], Any], options: argparse.Namespace
) -> None:
    """Take steps with and without a recorder, in turn."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    device, count = engine.device, int(options.steps)

    def take() -> float:
        dist.barrier()
        _wait(device)
        began_s = time.perf_counter()
        for _ in range(count):
            step()
        _wait(device)
        return (time.perf_counter() - began_s) / count

    for _ in range(options.turns):
        seconds[False].append(take())
        with plan.trace(engine, options.out / "recorded.json"):
            seconds[True].append(take())
    plain_s, recorded_s = (statistics.median(seconds[key]) for key in (False, True))
    least = min(seconds[True]) / min(seconds[False]) - 1
    if dist.get_rank() == 0:
        print(
            f"step {plain_s * 1e3:.1f} ms, recorded {recorded_s * 1e3:.1f} ms: "
            f"{100 * (recorded_s / plain_s - 1):+.2f} %; shortest to shortest "
            f"{100 * least:+.2f} %",
        )
        for key, what in ((False, "plain"), (True, "recorded")):
            print(what, *(f"{each * 1e3:.1f}" for each in seconds[key]), flush=True)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _show(recorded: Path, curves: Path) -> None:
    if dist.get_rank():
        return
    Console(width=110).print(usage_report(usage(Trace.load(recorded)).to_dict()))
    for file in sorted(curves.rglob("*.csv")):
        *_, last = file.read_text().splitlines()
        print(f"{file.stem}: {last}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=WORKLOADS, default="llama-1b")
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of one turn")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/recording"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
