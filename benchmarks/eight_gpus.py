"""The GPUs of one machine, and what ``tune`` would do with them: each layout trained.

    torchrun --nproc-per-node 8 benchmarks/eight_gpus.py --out results --budget-s 540

One GPU, data parallelism with ZeRO-1, DeepSpeed's pipeline written by hand and cut by
``parameters``, and the pipelines that ``tune`` plans, in the order of its ranking: all
take the same batch from the same weights, and the loss of the first step must be
equal. ``--device cpu`` rehearses it with tiny shapes and any number of processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.speed.hand_written import hand_written, one_device
from benchmarks.speed.layouts import Result, layout_table
from benchmarks.speed.profiling import profiled
from benchmarks.speed.ranks import gather, join, joined
from benchmarks.speed.registry import WORKLOADS
from benchmarks.speed.setting import Setting, shared
from benchmarks.speed.timing import free, timed_steps
from benchmarks.speed.tuned import Tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.speed.runner import EngineRunner
    from partitioner.tuning import Row

ONE = "1 GPU"


def main() -> int:
    """Run every layout of every model for which there is time; print the tables."""
    options = _options()
    deadline = time.monotonic() + options.budget_s
    device = join(options.device)
    dtype = getattr(torch, options.dtype)
    found: dict[str, list[Result]] = {}
    for name in options.models:
        setting = Setting(
            workload=WORKLOADS[name](tiny=device.type == "cpu", dtype=dtype),
            device=device,
            dtype=dtype,
            micro_batches=options.micro_batches,
        )
        tuned = Tuned(setting, options.out, options.time_limit_s)
        if dist.get_rank() == 0:
            print(tuned.tuning, flush=True)
        found[name] = list(_results(tuned, options, deadline))
        setting.close()
        _report(name, found, options.out / "results.json")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _results(
    tuned: Tuned, options: argparse.Namespace, deadline: float
) -> Iterator[Result]:
    """Train each layout in turn, until the time is up."""
    for name, row, build in _layouts(tuned):
        if not any(fnmatch.fnmatch(name, each) for each in options.layouts):
            continue
        if shared(lambda: time.monotonic() > deadline):
            return
        began = time.monotonic()
        built = _built(name, build)
        if built is None:
            continue
        result = _timed(name, row, *built, setting=tuned.setting, options=options)
        if dist.get_rank() == 0:
            took_s = time.monotonic() - began
            print(f"{result}; {took_s:.0f} s in all", flush=True)
        yield result


def _layouts(
    tuned: Tuned,
) -> Iterator[tuple[str, Row | None, Callable[[], EngineRunner]]]:
    """Yield name, what ``tune`` says of it, and how it is built."""
    ranked = tuned.ranked()
    one = next((row for row in ranked if row.layout.gpus == 1), None)
    again = one is not None and one.plan is not None and _recomputes(one)
    setting = tuned.setting
    yield ONE, one, lambda: one_device(setting, recomputed=again)
    stages = dist.get_world_size()
    for row in ranked:
        if row.layout.stages == 1 < row.layout.gpus:
            yield row.layout.name, row, lambda row=row: tuned.run(row)  # type: ignore[misc]
    by_hand = f"{stages} stages by hand, parameters"
    yield by_hand, None, lambda: hand_written(setting, "parameters", on_device=False)
    for row in ranked:
        if row.layout.stages > 1:
            yield row.layout.name, row, lambda row=row: tuned.run(row)  # type: ignore[misc]


def _recomputes(row: Row) -> bool:
    return row.plan is not None and any(row.plan.assignment.recomputed)


def _built(
    name: str, build: Callable[[], EngineRunner]
) -> tuple[EngineRunner, list[float]] | None:
    """Build a layout; None, and said, if some rank has not the memory.

    One GPU takes its first step here, whose loss is returned: there each is by itself,
    and no other rank waits for one that fails.
    """
    runner, losses, failure = None, [], ""
    try:
        runner = build()
        if name == ONE:
            losses = [float(runner.step())]
    except torch.OutOfMemoryError as error:
        failure = str(error).partition(".")[0]
    failures = [each for each in gather(failure) if each]
    if runner is not None and not failures:
        return runner, losses
    if dist.get_rank() == 0:
        print(f"{name}: {failures[0]}", flush=True)
    return None


def _timed(
    name: str,
    row: Row | None,
    runner: EngineRunner,
    taken: list[float],
    *,
    setting: Setting,
    options: argparse.Namespace,
) -> Result:
    """Time a layout, profile a step, and let it go; ``taken``: losses so far."""
    warm_up = max(0, options.warm_up - len(taken))
    steps = timed_steps(runner, setting.device, warm_up=warm_up, repeats=options.steps)
    profile = profiled(runner, setting.device)
    runner.close()
    del runner
    setting.free()
    free(setting.device)
    mine = (steps.seconds, steps.peak_bytes, profile["bubble"], taken + steps.losses)
    seconds, peaks, bubbles, losses = zip(*gather(mine), strict=True)
    simulated = row.plan.simulation if row is not None and row.plan else None
    return Result(
        name=name,
        gpus=1 if name == ONE else dist.get_world_size(),
        items=setting.workload.items * setting.micro_batches,
        unit=setting.workload.unit,
        step_s=statistics.median(joined(seconds, alone=name == ONE)),
        predicted_s=row.step_s if row is not None else None,
        bubble=statistics.mean(bubbles),
        predicted_bubble=simulated.bubble_share if simulated else None,
        peak_bytes=max(peaks),
        loss=losses[-1][0],
    )


def _report(name: str, found: dict[str, list[Result]], file: Path) -> None:
    if dist.get_rank() == 0:
        print(f"\n{name}\n{layout_table(found[name])}\n", flush=True)
        plain: Any = {model: [vars(r) for r in rows] for model, rows in found.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(plain, indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="+", choices=WORKLOADS, default=["llama-7b", "bert-large"]
    )
    parser.add_argument(
        "--micro-batches", type=int, default=64, help="of one step, over all replicas"
    )
    parser.add_argument("--layouts", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--warm-up", type=int, default=1, help="steps not timed")
    parser.add_argument("--steps", type=int, default=2, help="steps timed")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin nothing after this"
    )
    parser.add_argument(
        "--time-limit-s", type=float, default=20, help="for the solver, each layout"
    )
    parser.add_argument("--out", type=Path, default=Path("build/eight_gpus"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
