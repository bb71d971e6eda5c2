"""One rank of a pipeline in float16 on its own GPU; started by torchrun.

Usage: ``torchrun --nproc-per-node 2 -m tests.distributed.fp16_stage FOLDER``. Every
rank leaves what it saw as ``rank_R.pt``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed.engine_cases import FOUR, Tagger, pairs, tag_loss

MICRO_BATCHES, SCALE_POWER, LEARNING_RATE = 4, 8, 0.05
OVERFLOWS = 2
"""The step whose gradient overflows, on the last stage alone."""
STEPS, WINDOW = 7, 2
"""So many steps without overflow let the scale double."""
HUGE = 6e4
"""Times the scale it is more than float16 can hold, 65504."""


class Exploding(nn.Module):
    """A loss with a parameter whose gradient is the batch's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = nn.Parameter(torch.zeros(1))

    def forward(self, output: Any, labels: Mapping[str, Tensor]) -> Tensor:
        loss = tag_loss((output[0].float(),), labels["labels"])
        return loss + self.fuse.float().sum() * labels["gradient"]


def batches() -> list[list[Any]]:
    """Return the micro-batches of every step."""
    made = []
    for step in range(STEPS):
        gradient = torch.tensor(HUGE if step == OVERFLOWS else 0.5)
        made.append(
            [
                (ids, {"labels": labels, "gradient": gradient})
                for ids, labels in pairs(step, FOUR)
            ]
        )
    return made


def build() -> tuple[nn.Module, nn.Module]:
    """Return the model and its loss, in float32."""
    torch.manual_seed(0)
    return Tagger().train(), Exploding()


def main(folder: str) -> None:
    """Train this rank's stage, without ZeRO and with its stage 1."""
    seen = [_train(zero) for zero in (0, 1)]
    torch.save(seen, Path(folder) / f"rank_{os.environ['RANK']}.pt")


def _train(zero: int) -> dict[str, Any]:
    engine = _engine(zero)
    seen: dict[str, Any] = {"losses": [], "norms": [], "scales": [], "skipped": []}
    seen["states"] = []
    for micro_batches in batches():
        seen["losses"].append(engine.train_batch(iter(micro_batches)).item())
        seen["norms"].append(engine.get_global_grad_norm())
        seen["scales"].append(float(engine.optimizer.loss_scale))
        seen["skipped"].append(engine.skipped_steps)
        seen["states"].append(
            {
                name: value.detach().float().cpu().clone()
                for layer in engine.module.local_layers()
                for name, value in layer.named_parameters()
            }
        )
    engine.destroy()
    return seen


def _engine(zero: int) -> Any:
    from partitioner import partition

    model, loss = build()
    plan = partition(
        model.half(),
        2,
        example_inputs=model.example_input_array,
        micro_batches=MICRO_BATCHES,
        device="h100",
        dtype="float16",
    )
    precision = {
        "enabled": True,
        "initial_scale_power": SCALE_POWER,
        "loss_scale_window": WINDOW,
        "hysteresis": 1,
    }
    engine, *_ = plan.initialize(
        loss.half(),
        config={
            "fp16": precision,
            "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        },
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=LEARNING_RATE, momentum=0.9
        ),
    )
    return engine


if __name__ == "__main__":
    main(sys.argv[1])
