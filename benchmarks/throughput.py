"""Tokens per second of our pipelines next to hand-written ones, in one process group.

    torchrun --nproc-per-node 2 benchmarks/throughput.py --models llama-1b \
        --variants 'eager/*' --out results --budget-s 400

Every variant trains the same model from the same weights on the same data. They run
one after the other, each in every repetition, in an order that rotates; the memory of
one is given back before the next. Results are added to a file after each, and what the
file has is not run again. ``--device cpu`` rehearses all of it with tiny shapes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.speed.choosing import add_options, chosen
from benchmarks.speed.ours import Planner
from benchmarks.speed.profiling import profiled
from benchmarks.speed.ranks import gather, join, joined
from benchmarks.speed.registry import WORKLOADS
from benchmarks.speed.results import Results, table
from benchmarks.speed.runner import EngineRunner
from benchmarks.speed.setting import Setting, shared
from benchmarks.speed.timing import free, timed_steps
from benchmarks.speed.variants import variants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.speed.results import Key
    from benchmarks.speed.runner import Runner
    from benchmarks.speed.variants import Variant


def main() -> int:
    """Run what is missing of the chosen variants, and print a table."""
    options = _options()
    deadline = time.monotonic() + options.budget_s
    device = join(options.device)
    dtype = getattr(torch, options.dtype)
    file = "results-fused.jsonl" if options.fused else "results.jsonl"
    results = Results(options.out / file)
    for name in options.models:
        workload = WORKLOADS[name](tiny=device.type == "cpu", dtype=dtype)
        for micro_batches in options.micro_batches:
            setting = Setting(
                workload=workload,
                device=device,
                dtype=dtype,
                micro_batches=micro_batches,
                fused=options.fused,
            )
            _run_all(setting, results, options, deadline)
            setting.close()
    if dist.get_rank() == 0:
        print(table(results))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _run_all(
    setting: Setting, results: Results, options: argparse.Namespace, deadline: float
) -> None:
    """Run the chosen variants of one model that the results lack."""
    planner = Planner(setting, options.out, stages=dist.get_world_size())
    wanted = list(chosen(variants(setting, planner), options, planner))
    seen = shared(
        lambda: results.seen() - (results.failed() if options.retry else set())
    )
    for variant, repetition in _rotated(wanted, options.repetitions):
        workload = setting.workload.name
        key = (workload, setting.micro_batches, variant.name, repetition)
        if key in seen:
            continue
        if shared(lambda: time.monotonic() > deadline):
            return
        _run(variant, key, setting, results, options)


def _rotated(
    chosen: Sequence[Variant], repetitions: int
) -> Iterator[tuple[Variant, int]]:
    """Return all in turn for each repetition, every time from another on."""
    for repetition in range(repetitions):
        shift = repetition * len(chosen) // repetitions
        for variant in [*chosen[shift:], *chosen[:shift]]:
            yield variant, repetition


def _run(
    variant: Variant,
    key: Key,
    setting: Setting,
    results: Results,
    options: argparse.Namespace,
) -> None:
    """Build a variant, time it, and note the result."""
    first = dist.get_rank() == 0
    if first:
        results.begin(key)
    predicted_s = variant.predict() if variant.predict else None
    started = time.monotonic()
    runner = _built(variant)
    if runner is None:
        return
    built = time.monotonic()
    steps = timed_steps(
        runner, setting.device, warm_up=options.warm_up, repeats=options.steps
    )
    found: dict[str, Any] = {
        "seconds": steps.seconds,
        "peak_bytes": steps.peak_bytes,
        "losses": steps.losses,
    }
    if options.profile and isinstance(runner, EngineRunner):
        found["profile"] = profiled(runner, setting.device, _trace(key, options))
    cut, everyone = runner.cut, gather(found)
    runner.close()
    del runner
    setting.free()
    free(setting.device)
    if first:
        alone = variant.name.endswith("/one-gpu")
        line = {
            "items": setting.workload.items * setting.micro_batches,
            "unit": setting.workload.unit,
            "ranks": dist.get_world_size(),
            "seconds": joined([each["seconds"] for each in everyone], alone=alone),
            "peak_bytes": max(each["peak_bytes"] for each in everyone),
            "predicted_s": predicted_s,
            "losses": everyone[-1]["losses"],  # a runner's last stage knows them
            "cut": list(cut),
            "build_s": built - started,
            "total_s": time.monotonic() - started,
        }
        profiles = [each["profile"] for each in everyone if "profile" in each]
        results.add(key, **line, profiles=profiles)
        _say(key, line, profiles)


def _trace(key: Key, options: argparse.Namespace) -> Path | None:
    """Return the file for this rank's trace, if traces are wanted."""
    if not options.traces:
        return None
    name = "-".join(map(str, key)).replace("/", "-")
    folder: Path = options.out
    return folder / "traces" / f"{name}-rank{dist.get_rank()}.json.gz"


def _built(variant: Variant) -> Runner | None:
    """Build a variant; None if some rank cannot, which is said."""
    runner, failure = None, ""
    try:
        runner = variant.build()
    except Exception as error:  # an exporter's, a library's: the others still count
        first = next(iter(str(error).splitlines()), "")
        failure = f"{type(error).__name__}: {first}"
    failures = [each for each in gather(failure) if each]
    if failures and dist.get_rank() == 0:
        print(f"{variant.name} cannot be built: {failures[0]}", flush=True)
    return None if failures else runner


def _say(key: Key, line: dict[str, Any], profiles: list[dict[str, Any]]) -> None:
    step_s = statistics.median(line["seconds"])
    rate = line["items"] / step_s
    print(
        f"{key[0]} {key[1]} {key[2]} #{key[3]}: {rate:,.0f} {line['unit']}/s, "
        f"step {step_s * 1e3:.1f} ms, loss {line['losses'][0]:.4f}, "
        f"built in {line['build_s']:.0f} s, {line['total_s']:.0f} s in all",
        flush=True,
    )
    for rank, found in enumerate(profiles):
        print(f"  rank {rank}: {json.dumps(_rounded(found))}", flush=True)


def _rounded(found: Any) -> Any:
    """Return what is to be read: four digits after the point."""
    if isinstance(found, dict):
        return {key: _rounded(value) for key, value in found.items()}
    return round(found, 4) if isinstance(found, float) else found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=2, help="steps not timed")
    parser.add_argument("--steps", type=int, default=4, help="steps timed")
    parser.add_argument("--profile", action="store_true", help="say where time goes")
    parser.add_argument(
        "--traces", action="store_true", help="with --profile: write torch's traces"
    )
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
