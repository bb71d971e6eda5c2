"""The stages of pipelines, each alone on one device, one after the other: estimates.

    python -m benchmarks.stages_alone --models llama-1b --variants 'eager/*' \
        --near-planned 1 --out results --budget-s 120

For judging cuts where two GPUs are not at hand. Nothing here is a pipeline's
throughput: ``benchmarks/throughput.py`` measures that. Each of the two stages of a
variant runs by itself, forward and backward, micro-batch after micro-batch on what the
stage before really sends, the loss on the last one, gradients added up as the variant's
own engine does. With t for a stage's seconds per micro-batch, the estimated step of m
micro-batches under 1F1B is m times the larger t, and the smaller one once: the slower
stage runs all m of them one after another, and one micro-batch passes the faster one
while the slower has nothing to do. With the second stage the slower, that is before its
first forward and after its last backward; with the first, while the pipeline fills and
drains, where it does part of its own work meanwhile: then the estimate is up to the
difference of both t too long. Left out: messages, the optimizer, the engine's own work
on the host, and what two processes on one host do to each other.

``one-gpu`` is the whole hand-written model as a single stage; what two devices with it
would make is the ideal. The loss of every last stage must be ``one-gpu``'s: the script
exits with 1 if one is not. Results are added to a file, and what it has is not run
again. The planner's prices are kept beside it, where ``throughput.py`` finds them.
``--device cpu`` rehearses all of it with tiny shapes.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from benchmarks.speed.alone import REPEATS, run_alone
from benchmarks.speed.choosing import add_options, chosen
from benchmarks.speed.estimates import estimates_table, in_words, wrong_losses
from benchmarks.speed.ours import Planner
from benchmarks.speed.ranks import join_alone
from benchmarks.speed.registry import WORKLOADS
from benchmarks.speed.results import Results
from benchmarks.speed.setting import Setting
from benchmarks.speed.stages import stages_of
from benchmarks.speed.timing import free, held_bytes
from benchmarks.speed.variants import variants

if TYPE_CHECKING:
    from benchmarks.speed.stages import Stages
    from benchmarks.speed.variants import Variant

STAGES = 2


def main() -> int:
    """Run what is missing of the chosen variants, and print a table."""
    options = _options()
    deadline = time.monotonic() + options.budget_s
    device = join_alone(options.device)
    dtype = getattr(torch, options.dtype)
    file = f"stages-alone-{options.device}-{options.dtype}.jsonl"
    results = Results(options.out / file)
    for name in options.models:
        for micro_batches in options.micro_batches:
            setting = Setting(
                workload=WORKLOADS[name](tiny=device.type == "cpu", dtype=dtype),
                device=device,
                dtype=dtype,
                micro_batches=micro_batches,
                drawn=1,
            )
            _run_all(setting, results, options, deadline)
            setting.close()
    print(estimates_table(results))
    dist.destroy_process_group()
    return int(bool(wrong_losses(results)))


def _run_all(
    setting: Setting, results: Results, options: argparse.Namespace, deadline: float
) -> None:
    """Run the chosen variants of one model that the results lack."""
    planner = Planner(setting, options.out, stages=STAGES)
    seen = results.seen() - (results.failed() if options.retry else set())
    own = (each for each in variants(setting, planner) if each.cut is not None)
    for variant in chosen(own, options, planner):
        key = (setting.workload.name, setting.micro_batches, variant.name, 0)
        if key in seen:
            continue
        if time.monotonic() > deadline:
            return
        results.begin(key)
        line = _ran(variant, planner, options)
        if line is not None:
            results.add(key, **line)
            print(in_words({"key": key, **line}), flush=True)


def _ran(
    variant: Variant, planner: Planner, options: argparse.Namespace
) -> dict[str, Any] | None:
    """Run the stages of a variant; None if that cannot be done, which is said."""
    began = time.monotonic()
    try:
        line = _run(stages_of(variant, planner), planner.setting, options.repeats)
    except Exception as error:  # memory, a library's: the others still count
        first = next(iter(str(error).splitlines()), "")
        why = f"{type(error).__name__}: {first}"
        print(f"{variant.name} cannot be run: {why}", flush=True)
        return None
    finally:
        planner.setting.free()
    took_s = time.monotonic() - began
    return {**line, "dtype": options.dtype, "total_s": took_s}


def _run(stages: Stages, setting: Setting, repeats: int) -> dict[str, Any]:
    """Run every stage on what the one before sends."""
    needs = stages.needs
    free(setting.device)
    gc.freeze()  # what is left now stays: collecting need not look at it at every stage
    received, labels = stages.micro_batch()
    found = []
    for number, need in enumerate(needs):
        row, received = _run_stage(stages, number, (received, labels), setting, repeats)
        predicted = {"predicted_s": need.device_s, "predicted_host_s": need.host_s}
        found.append({**row, **predicted})
        free(setting.device)
    return {
        "items": setting.workload.items * setting.micro_batches,
        "unit": setting.workload.unit,
        "stages": found,
        "loss": float(received),
        "cut": list(stages.cut),
    }


def _run_stage(
    stages: Stages,
    number: int,
    batch: tuple[Any, Any],
    setting: Setting,
    repeats: int,
) -> tuple[dict[str, float], Any]:
    """Build one stage, run it, and let it go; return also what it sends."""
    began, before_bytes = time.monotonic(), held_bytes(setting.device)
    stage = stages.build(number)
    built = time.monotonic()
    alone = run_alone(stage, *batch, setting.device, repeats=repeats)
    return {
        "seconds": alone.seconds,
        "host_s": alone.host_s,
        "peak_bytes": alone.peak_bytes - before_bytes,
        "build_s": built - began,
        "run_s": time.monotonic() - built,
    }, alone.made


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help="micro-batches timed on a stage"
    )
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; at least one must be timed")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        parser.error(f"started as {processes} processes; it is one: use python -m")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
