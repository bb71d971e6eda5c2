"""Predicted peak memory of each stage next to the allocator's, under DeepSpeed.

    torchrun --nproc-per-node 2 benchmarks/accuracy_memory.py --json out.json

Every case trains three steps; the peak of the last two counts. Rank 0 prints a table.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from torch import nn

from benchmarks.models import SHAPES
from partitioner import partition

if TYPE_CHECKING:
    from partitioner.plan import Plan

MICRO_BATCHES = 6
STEPS = 3
CASES = [
    # Short: in float32 the longer one is larger than the device.
    *itertools.product(["llama-1b-short"], ["bfloat16", "float32"], ["none", "all"]),
    ("gpt2-medium", "bfloat16", "none"),
    # Not bfloat16: DeepSpeed leaves batch statistics in float32, and torch's backward
    # of batch norm takes no such mix on a GPU.
    ("resnet-152", "float32", "none"),
    ("t5-large", "bfloat16", "all"),
]


def build(name: str) -> nn.Module:
    """Return the model on the CPU with weights that keep activations finite."""
    with torch.device("meta"):
        model = SHAPES[name].build()
    model.to_empty(device="cpu")
    for weight in model.parameters():
        nn.init.constant_(weight, 0.01)
    for buffer in model.buffers():
        buffer.fill_(1)
    return model


def example(name: str) -> dict[str, Any]:
    """Return one micro-batch with labels, so that the model computes its loss."""
    inputs = SHAPES[name].inputs()
    if "pixel_values" in inputs:
        return {**inputs, "labels": torch.zeros(len(inputs["pixel_values"])).long()}
    return {**inputs, "labels": inputs.get("decoder_input_ids", inputs["input_ids"])}


def train(plan: Plan, batch: dict[str, Any], stage: int) -> dict[str, Any]:
    """Run three steps and return predicted and real bytes of this rank's stage."""
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    engine, *_ = deepspeed.initialize(
        model=plan.pipeline_module(), config=plan.ds_config()
    )
    engine.set_batch_fn(plan.batch_fn)
    built = torch.cuda.memory_allocated() - start
    for step in range(STEPS):
        if step == 1:
            kept = torch.cuda.memory_allocated() - start
            torch.cuda.reset_peak_memory_stats()
        engine.train_batch(itertools.repeat(batch))
    return {
        "stage": stage,
        "predicted": plan.stages[stage].memory_bytes,
        "real": torch.cuda.max_memory_allocated() - start,
        "built": built,
        "between_steps": kept,
        "parameters": plan.stages[stage].parameters,
        "parts": asdict(plan.stages[stage].score),
    }


def examine(name: str, dtype: str, checkpointing: str) -> list[dict[str, Any]]:
    """Plan and train one case; returns a row for each stage."""
    rank = int(os.environ["RANK"])
    batch = example(name)
    plan = partition(
        build(name),
        stages=2,
        example_inputs=batch,
        micro_batches=MICRO_BATCHES,
        device="h200",
        dtype=dtype,
        checkpointing=checkpointing,  # type: ignore[arg-type]
    )
    row = train(plan, batch, rank)
    rows: list[Any] = [None, None]
    torch.distributed.all_gather_object(rows, row)
    case = {"model": name, "dtype": dtype, "checkpointing": checkpointing}
    return [{**case, **found} for found in rows]


def main() -> int:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", type=int, default=range(len(CASES)))
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rows: list[dict[str, Any]] = []
    for number in options.cases:
        rows += examine(*CASES[number])
        gc.collect()
        torch.cuda.empty_cache()
        if os.environ["RANK"] == "0":
            for row in rows[-2:]:
                report(row)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    return 0


def report(row: dict[str, Any]) -> None:
    """Print one line."""
    error = row["predicted"] / row["real"] - 1
    print(
        f"{row['model']:12} {row['dtype']:9} {row['checkpointing']:5} "
        f"stage {row['stage']}: {row['predicted'] / 2**30:6.2f} GiB predicted, "
        f"{row['real'] / 2**30:6.2f} real ({error:+.1%})",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
