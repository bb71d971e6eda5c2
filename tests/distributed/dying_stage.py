"""One rank of a pipeline whose second stage fails in the middle of a step.

Usage, with a launcher's environment: ``python -m tests.distributed.dying_stage HOW``,
where HOW is "killed" or "nan".
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import Tensor, nn

from partitioner import partition

FAILS_IN = 6
"""The forward of the second stage: one of the second step."""


class Fails(nn.Module):
    """Kills its process in some forward of training, or divides by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.ran = 0

    def forward(self, x: Tensor) -> Tensor:
        self.ran += 1
        fails = os.environ["RANK"] == "1" and self.ran == FAILS_IN
        if fails and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return x * self.weight / (0.0 if fails else 1.0)


def main() -> None:
    torch.manual_seed(0)
    failing = Fails()
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), failing, nn.Linear(8, 8))
    plan = partition(
        model,
        2,
        example_inputs=torch.zeros(2, 8),
        micro_batches=4,
        device="h100",
        leaf=[Fails],
        pin={"0": 0, "2": 1},
    )
    failing.ran = 0
    engine, *_ = plan.initialize(
        nn.functional.mse_loss,
        config={"steps_per_print": 10**9},
        check_finite=sys.argv[1] == "nan",
    )
    batch = torch.ones(2, 8), torch.ones(2, 8)
    for step in range(4):
        loss = engine.train_batch(iter([batch] * 4)).item()
        sys.stdout.write(f"step {step}: {loss}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
