"""One rank of a pipeline of which one stage fails in the middle of a step.

Usage, with a launcher's environment: ``python -m tests.distributed.dying_stage HOW
[SCHEDULE]``, where HOW is "killed", "nan", "module", "loss", "operation" or "first".
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import Tensor, nn

from partitioner import partition

HOW, SCHEDULE = [*sys.argv[1:], "1f1b"][:2]
FAILS_IN = 6
"""The forward of a stage, and of the loss: one of the second step."""


class Fails(nn.Module):
    """Kills its process in some forward of training, raises, or divides by zero."""

    def __init__(self, rank: str, *how: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.here = os.environ["RANK"] == rank and HOW in how
        self.ran = 0

    def forward(self, x: Tensor) -> Tensor:
        self.ran += 1
        fails = self.here and self.ran == FAILS_IN
        if fails and HOW == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fails and HOW in {"module", "first"}:
            raise KeyError("no such expert")
        return x * self.weight / (0.0 if fails else 1.0)


class Model(nn.Module):
    """Two stages; the second takes columns by numbers that the batch brings."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.early = Fails("0", "first")
        self.late = Fails("1", "killed", "nan", "module")
        self.after = nn.Linear(8, 8)

    def forward(self, x: Tensor, columns: Tensor) -> Tensor:
        hidden = self.late(self.early(self.before(x)).tanh())
        result: Tensor = self.after(hidden[:, columns])
        return result


class Loss:
    """A loss that raises in some call."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.ran += 1
        if HOW == "loss" and self.ran == FAILS_IN:
            raise ZeroDivisionError("no tokens")
        return nn.functional.mse_loss(output, target)


def main() -> None:
    torch.manual_seed(0)
    columns = torch.arange(8)
    model = Model()
    plan = partition(
        model,
        2,
        example_inputs=(torch.zeros(2, 8), columns),
        micro_batches=4,
        device="h100",
        schedule=SCHEDULE,
        leaf=[Fails],
        pin={"early": 0, "late": 1},
    )
    model.early.ran = model.late.ran = 0
    engine, *_ = plan.initialize(
        Loss(), config={"steps_per_print": 10**9}, check_finite=HOW == "nan"
    )
    for step in range(4):
        if HOW == "operation" and step == 1:
            columns = columns + 1
        batch = (torch.ones(2, 8), columns), torch.ones(2, 8)
        loss = engine.train_batch(iter([batch] * 4)).item()
        sys.stdout.write(f"step {step}: {loss}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
