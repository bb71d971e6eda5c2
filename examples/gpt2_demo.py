"""Show it all on one machine: the report, then pipeline and original side by side.

    make demo

Prints what each of four stages would cost, trains GPT-2 for ten steps as a pipeline
of two processes, and the unpartitioned model in one process on the same data. Fails
if any loss differs by more than 1e-5.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpt2_train import MICRO_BATCHES, batches, build_model, example_inputs

from partitioner import inspect_model

STEPS = 10
STAGES_INSPECTED = 4
TOLERANCE = 1e-5
"""Largest relative difference of any loss."""
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
"""What plan.ds_config() sets."""


def train_pipeline() -> list[float]:
    """Train in two processes, as the launcher would start them."""
    script = Path(__file__).with_name("gpt2_train.py")
    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder) / "losses.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc-per-node", "2", str(script)]
        subprocess.run(
            [*command, "--steps", str(STEPS), "--losses", str(losses)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        found: list[float] = json.loads(losses.read_text())
    return found


def train_original() -> list[float]:
    """Train the unpartitioned model with the same accumulation and optimizer."""
    model = build_model().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
    )
    data = batches(STEPS)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(MICRO_BATCHES):
            loss = model(**next(data)).loss
            (loss / MICRO_BATCHES).backward()
            total += loss.item() / MICRO_BATCHES
        optimizer.step()
        losses.append(total)
    return losses


def main() -> int:
    """Run the demo; return the exit code."""
    print(inspect_model(build_model(), STAGES_INSPECTED, example_inputs=example_inputs))
    print("Training on 2 processes, and unpartitioned on 1 …", flush=True)
    pipeline, original = train_pipeline(), train_original()
    print(f"{'step':>4}  {'pipeline':>12}  {'original':>12}  {'difference':>10}")
    worst = 0.0
    for step, (ours, theirs) in enumerate(zip(pipeline, original, strict=True), 1):
        difference = abs(ours - theirs) / abs(theirs)
        worst = max(worst, difference)
        print(f"{step:>4}  {ours:>12.7f}  {theirs:>12.7f}  {difference:>10.1e}")
    verdict = "equal" if worst <= TOLERANCE else "DIFFERENT"
    print(
        f"largest relative difference: {worst:.1e} (limit {TOLERANCE:.0e}): {verdict}"
    )
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
