"""A model whose layers take as long as they are told: what a timeline is checked by."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Cost, Plan, partition

__all__ = [
    "LAYERS",
    "Run",
    "Sleeper",
    "batch_of",
    "engine_of",
    "model",
    "plan_of",
    "record",
    "train",
]

LAYERS = 24
WIDTH = 4


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Sleeper(nn.Module):
    """Does a little, and takes its time.

    Args:
        forward_s: On average.
        backward_s: On average.
        jitter: Standard deviation of the logarithm of a pass's time.
    """

    def __init__(
        self, forward_s: float, backward_s: float, jitter: float = 0.0
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.times = (forward_s, backward_s)
        self.jitter = jitter

    def forward(self, x: Tensor) -> Tensor:
        times = (each * self._drawn() for each in self.times)
        slept: Tensor = _Sleep.apply(self.layer(x), *times)
        return slept

    def _drawn(self) -> float:
        """Return a factor whose mean is 1; no generator's state has a part in it."""
        if not self.jitter:
            return 1.0
        return random.SystemRandom().lognormvariate(-(self.jitter**2) / 2, self.jitter)


def model(
    slow: range, factor: float, forward_s: float, jitter: float = 0.0
) -> nn.Sequential:
    """Return layers of which some are slower than they look."""
    torch.manual_seed(0)
    times = [forward_s * (factor if i in slow else 1.0) for i in range(LAYERS)]
    return nn.Sequential(*(Sleeper(took_s, 2 * took_s, jitter) for took_s in times))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained and recorded; equal on all ranks."""

    ranks: int
    micro_batches: int
    forward_s: float = 1e-3
    """Of a layer; its backward takes twice as long."""
    slow: range = range(0)
    factor: float = 1.0
    schedule: str = "1f1b"
    steps: int = 2
    jitter: float = 0.0
    """Of every pass of a layer, see :class:`Sleeper`."""


def plan_of(run: Run) -> Plan:
    """Plan as if all layers took the same."""
    said = Cost(forward_s=run.forward_s, backward_s=2 * run.forward_s)
    return partition(
        model(run.slow, run.factor, run.forward_s, run.jitter),
        run.ranks,
        example_inputs=torch.zeros(2, WIDTH),
        micro_batches=run.micro_batches,
        device="h100",
        schedule=run.schedule,
        leaf=[Sleeper],
        costs={Sleeper: said},
    )


def loss_of(output: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, labels)


def record(run: Run, folder: Path) -> str:
    """Train and record under the plan, then under the plan that this gives.

    Returns:
        This rank's folder of traces, ``before.json`` and ``after.json``.
    """
    plan = plan_of(run)
    train(plan, run, folder / "before.json")
    dist.barrier()
    train(plan.replan(folder / "before.json"), run, folder / "after.json")
    return str(folder)


def batch_of(run: Run) -> list[tuple[Tensor, Tensor]]:
    return [(torch.ones(2, WIDTH), torch.zeros(2, WIDTH))] * run.micro_batches


def engine_of(plan: Plan, config: Mapping[str, Any] | None = None) -> Any:
    engine, *_ = plan.initialize(
        loss_of,
        config={"steps_per_print": 10**9, **(config or {})},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    return engine


def train(plan: Plan, run: Run, path: Path) -> None:
    engine = engine_of(plan)
    engine.train_batch(iter(batch_of(run)))
    with plan.trace(engine, path):
        for _ in range(run.steps):
            engine.train_batch(iter(batch_of(run)))
    engine.destroy()
    dist.barrier()
