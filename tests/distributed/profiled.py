"""A model that clocks its own layers while torch.profiler looks on."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partitioner import PartitionerError, Plan, partition
from partitioner.runtime.profiling import StepProfile, profile_steps
from tests.distributed.engines import QUIET
from tests.distributed.sleeping import loss_of

__all__ = ["LAYERS", "MICRO_BATCHES", "SLOW", "STEPS", "profiled"]

LAYERS = 8
SLOW = 5
STEPS = 2
MICRO_BATCHES = 4
WIDTH = 4
_clocked_s: dict[tuple[str, str], float] = defaultdict(float)
"""Seconds by the clock around each sleep, by layer and pass."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, took_s: float) -> Tensor:
        ctx.name, ctx.took_s = name, took_s
        _sleep(name, "forward", took_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        _sleep(ctx.name, "backward", 2 * ctx.took_s)
        return gradient, None, None


def _sleep(name: str, phase: str, took_s: float) -> None:
    began_s = time.perf_counter()
    time.sleep(took_s)
    _clocked_s[name, phase] += time.perf_counter() - began_s


class Slept(nn.Module):
    def __init__(self, name: str, took_s: float) -> None:
        super().__init__()
        self.name, self.took_s = name, took_s

    def forward(self, x: Tensor) -> Tensor:
        slept: Tensor = _Sleep.apply(x, self.name, self.took_s)
        return slept


class Block(nn.Module):
    """A leaf of the recording, with modules inside."""

    def __init__(self, name: str, took_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.inner = Slept(name, took_s)
        self.out = nn.Linear(WIDTH, WIDTH)  # for it, all before must be recomputed

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.inner(self.layer(x)))
        return result


def plan_of(**options: Any) -> Plan:
    torch.manual_seed(0)
    blocks = (Block(str(i), 15e-3 if i == SLOW else 5e-3) for i in range(LAYERS))
    return partition(
        nn.Sequential(*blocks),
        2,
        example_inputs=torch.zeros(2, WIDTH),
        micro_batches=MICRO_BATCHES,
        device="cpu",
        leaf=[Block],
        **options,
    )


def engine_of(plan: Plan, **options: Any) -> Any:
    engine, *_ = plan.initialize(
        loss_of,
        config=QUIET,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        **options,
    )
    return engine


def take(engine: Any, steps: int) -> None:
    batch = [(torch.ones(2, WIDTH), torch.zeros(2, WIDTH))] * MICRO_BATCHES
    for _ in range(steps):
        engine.train_batch(iter(batch))


def profiled(folder: Path) -> dict[str, Any]:
    """Return what profiles say of one pipeline after the other, and the clock."""
    plan = plan_of()
    engine = engine_of(plan)
    take(engine, 1)
    hooks = _hooks(engine)
    no_folder = _error(engine, steps=3, traces=Path(__file__))
    found: dict[str, Any] = {
        "errors": [_error(engine, active=0), _error(engine, steps=2), no_folder]
    }
    with profile_steps(engine, 1, 1, STEPS, traces=folder) as profile:
        take(engine, 2)
        _clocked_s.clear()
        take(engine, STEPS)
        found["clocked"] = dict(_clocked_s)
        take(engine, 1)  # after the active ones: not counted
    found["plain"] = profile
    found["left"] = [name for name in vars(engine) if name in {"train_batch", "_make"}]
    found["hooks"] = (hooks, _hooks(engine))
    engine.destroy()
    found["again"] = _profile(plan_of(checkpointing="all"))
    found["clocked again"] = dict(_clocked_s)
    found["dual"] = _profile(plan_of(schedule="dualpipev"))
    plan = plan_of()
    engine = engine_of(plan, zero_bubble=True)
    own = engine._INSTRUCTION_MAP
    found["put off"] = _profile_of(engine)
    with plan.trace(engine, folder.parent / "trace.json"):
        take(engine, 1)
    found["kept"] = engine._INSTRUCTION_MAP is own
    return found


def _hooks(engine: Any) -> int:
    modules = engine.module.modules()
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)


def _profile(plan: Plan) -> StepProfile:
    return _profile_of(engine_of(plan))


def _profile_of(engine: Any) -> StepProfile:
    with profile_steps(engine, 0, 1, 1, show=False) as profile:
        take(engine, 1)
        _clocked_s.clear()
        take(engine, 1)
    return profile


def _error(
    engine: Any, *, active: int = 1, steps: int = 0, traces: Path | None = None
) -> str:
    try:
        with profile_steps(engine, 1, 1, active, traces=traces, show=False):
            take(engine, steps)
    except PartitionerError as error:
        return str(error)
    return ""
