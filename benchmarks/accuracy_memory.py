"""Predicted peak memory of each stage next to the allocator's, under DeepSpeed.

    torchrun --nproc-per-node 2 benchmarks/accuracy_memory.py --json out.json

Two stages; with 4 or 8 processes two or four replicas of them. Every case trains three
steps; the peak of the last two counts. Rank 0 prints a table: the peak of each stage,
and what its parameters take between two backwards, by kind. Without a GPU (`--tiny`) it
rehearses: small models, kinds alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from benchmarks.models import SHAPES, Shape
from partitioner import partition
from partitioner.runtime.agreement import ensure_process_group
from tests.distributed.memory_cases import own_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.plan import Plan

STAGES = 2
MICRO_BATCHES = 6
STEPS = 3
KINDS = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "master_bytes": "master copies",
    "optimizer_bytes": "optimizer states",
}
PREDICTED_AS = {
    "weights": "weight_bytes",
    "gradients": "gradient_bytes",
    "masters": "master_bytes",
    "states": "optimizer_bytes",
}
"""What an engine's own tensors are called in a plan."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model under one engine."""

    model: str
    dtype: str
    checkpointing: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.model, self.dtype, self.checkpointing, *extra])


ZERO = {"zero_stage": 1}
OFFLOAD = {"zero_stage": 1, "offload_optimizer": True}
CASES = [
    # Short: in float32 the longer one is larger than the device.
    Case("llama-1b-short", "bfloat16", "none"),
    Case("llama-1b-short", "bfloat16", "all"),
    Case("llama-1b-short", "float32", "none"),
    Case("llama-1b-short", "float32", "all"),
    Case("gpt2-medium", "bfloat16", "none"),
    # Not bfloat16: DeepSpeed leaves batch statistics in float32, and torch's backward
    # of batch norm takes no such mix on a GPU.
    Case("resnet-152", "float32", "none"),
    Case("t5-large", "bfloat16", "all"),
    Case("llama-1b-short", "bfloat16", "none", ZERO),
    Case("llama-1b-short", "bfloat16", "all", ZERO),
    Case("llama-1b-short", "float32", "all", ZERO),
    Case("gpt2-medium", "bfloat16", "none", OFFLOAD),
]


def _tiny() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=4, n_head=4, vocab_size=512, use_cache=False
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


TINY = Shape(_tiny, lambda: {"input_ids": torch.randint(512, (2, 64))})


def shape(name: str, *, tiny: bool) -> Shape:
    """Return the model of a case, or a small one in its place."""
    return TINY if tiny else SHAPES[name]


def build(found: Shape) -> nn.Module:
    """Return the model on the CPU with weights that keep activations finite."""
    with torch.device("meta"):
        model = found.build()
    model.to_empty(device="cpu")
    for weight in model.parameters():
        nn.init.constant_(weight, 0.01)
    for buffer in model.buffers():
        buffer.fill_(1)
    return model


def example(found: Shape) -> dict[str, Any]:
    """Return one micro-batch with labels, so that the model computes its loss."""
    inputs = found.inputs()
    if "pixel_values" in inputs:
        return {**inputs, "labels": torch.zeros(len(inputs["pixel_values"])).long()}
    return {**inputs, "labels": inputs.get("decoder_input_ids", inputs["input_ids"])}


class Kinds:
    """The most bytes of each kind on the device, whenever a gradient is made."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.most = dict.fromkeys(KINDS, 0)
        # One parameter is enough, and does not slow the rest down.
        watched = next(p for p in engine.module.parameters() if p.requires_grad)
        # To be removed: torch finds no garbage that a hook leads back to.
        self.hook = watched.register_hook(self.look)

    def look(self, gradient: Tensor) -> Tensor:
        """Note what is there now."""
        for name, tensors in own_tensors(self.engine).items():
            kind = PREDICTED_AS[name]
            self.most[kind] = max(self.most[kind], on_device(tensors))
        return gradient


def on_device(tensors: Iterable[Tensor]) -> int:
    """Sum the bytes on this rank's device behind some tensors, each memory once."""
    kind = get_accelerator().device_name()
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage()
        for t in tensors
        if t.device.type == kind
    }
    return sum(storage.nbytes() for storage in storages.values())


def train(plan: Plan, batch: dict[str, Any]) -> dict[str, Any]:
    """Run three steps and return predicted and real bytes of this rank's stage."""
    device = get_accelerator()
    device.synchronize()
    start = allocated()
    engine, *_ = plan.initialize(config={"steps_per_print": 10**9})
    kinds = Kinds(engine)
    built = allocated() - start
    for step in range(STEPS):
        if step == 1:
            kept = allocated() - start
            device.reset_peak_memory_stats()
        engine.train_batch(itertools.repeat(batch))
    kinds.hook.remove()
    engine.destroy()  # under ZeRO hooks on its parameters would keep it
    stage = plan.stages[engine.stage_id]
    peak = torch.cuda.max_memory_allocated() - start if torch.cuda.is_available() else 0
    return {
        "stage": stage.index,
        "predicted": stage.memory_bytes,
        "real": peak,
        "built": built,
        "between_steps": kept,
        "parameters": stage.parameters,
        "kinds": asdict(stage.held),
        "real_kinds": kinds.most,
        "optimizer": type(engine.optimizer).__name__,
        "parts": asdict(stage.score),
    }


def allocated() -> int:
    """Return the bytes that tensors take on the GPU; 0 without one."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def released() -> int:
    """Let go of a finished case; returns the bytes of tensors that are still there."""
    for _ in range(2):  # DeepSpeed's bfloat16 parameters refer to themselves
        gc.collect()
    get_accelerator().empty_cache()
    return allocated()


def examine(case: Case, *, tiny: bool) -> list[dict[str, Any]]:
    """Plan and train one case; returns a row for each stage, of its first replica."""
    world = int(os.environ["WORLD_SIZE"])
    found = shape(case.model, tiny=tiny)
    batch = example(found)
    plan = partition(
        build(found),
        STAGES,
        example_inputs=batch,
        micro_batches=MICRO_BATCHES,
        device="cpu" if tiny else "h200",
        dtype=case.dtype,
        checkpointing=case.checkpointing,  # type: ignore[arg-type]
        replicas=world // STAGES,
        **case.options,
    )
    row = train(plan, batch)
    rows: list[Any] = [None] * world
    torch.distributed.all_gather_object(rows, row)
    named = {**asdict(case), "case": str(case), "replicas": world // STAGES}
    return [{**named, **rows[rank]} for rank in range(0, world, world // STAGES)]


def report(row: dict[str, Any]) -> None:
    """Print the peak of one stage, and a line for each kind."""
    head = f"{row['case']}, stage {row['stage']}, {row['replicas']} replica(s)"
    print(f"{head} ({row['optimizer']})")
    print(f"  {'':18} {'predicted':>10} {'measured':>10} {'off by':>10}   GiB")
    line("peak", row["predicted"], row["real"])
    for kind, words in KINDS.items():
        line(words, row["kinds"][kind], row["real_kinds"][kind])


def line(words: str, predicted: int, real: int) -> None:
    """Print two figures and their difference."""
    share = f"{predicted / real - 1:+.1%}" if real else "–"
    print(
        f"  {words:18} {predicted / 2**30:10.3f} {real / 2**30:10.3f} "
        f"{(predicted - real) / 2**30:+10.3f}   {share}",
        flush=True,
    )


def main() -> int:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", type=int, default=range(len(CASES)))
    parser.add_argument("--tiny", action="store_true", help="small models, no GPU")
    options = parser.parse_args()
    ensure_process_group()
    get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
    rows: list[dict[str, Any]] = []
    for number in options.cases:
        found = examine(CASES[number], tiny=options.tiny)
        rows += found
        left = released()
        if os.environ["RANK"] == "0":
            for row in found:
                report(row)
            print(f"  left of it: {left} bytes on this device")
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
