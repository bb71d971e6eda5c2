"""Train a plan on this rank from a shuffled, resumable source; save and resume."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Plan, partition
from partitioner.runtime.data import PipelineLoader
from tests.placements import random_assignment

MICRO_BATCHES = 4
WORDS, WIDTH = 13, 7


class Tied(nn.Module):
    """A tied table, a buffer that trains, a buffer and a weight that nobody uses."""

    def __init__(self, dropout: float, *, bf16: bool) -> None:
        super().__init__()
        # On the CPU batch norm takes no bf16 beside its float32 statistics.
        norm = nn.LayerNorm if bf16 else nn.BatchNorm1d
        self.table = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 9, bias=False), norm(9), nn.Tanh(),
                nn.Linear(9, WIDTH), nn.Dropout(dropout),
            )
            for _ in range(3)
        )  # fmt: skip
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(2, 3)
        self.register_buffer("weights", torch.linspace(0.5, 1.5, WORDS))

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        hidden = self.table(words)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        scores = self.head(self.norm(hidden))
        weights = self.get_buffer("weights").to(scores.dtype)
        return nn.functional.cross_entropy(scores, labels, weight=weights)


def build(run: Run) -> Tied:
    torch.manual_seed(0)
    return Tied(run.dropout, bf16=run.bf16).train()


def batch(generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "words": torch.randint(0, WORDS, (5,), generator=generator),
        "labels": torch.randint(0, WORDS, (5,), generator=generator),
    }


def samples() -> list[dict[str, Tensor]]:
    """Return what three steps and a half read."""
    generator = torch.Generator().manual_seed(3)
    batches = [batch(generator) for _ in range(14)]
    return [
        {name: each[name][i] for name in each} for each in batches for i in range(5)
    ]


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the model is trained; equal on all ranks."""

    stages: int = 2
    optimizer: str = "sgd"
    zero: int = 0
    bf16: bool = False
    cut_seed: int | None = None
    recompute: bool = False
    dropout: float = 0.0
    schedule: bool = True
    vee: bool = False
    """Two stages on every rank, under DualPipeV."""


@dataclass(kw_only=True)
class Outcome:
    """Losses by step, and this stage's parameters after the last."""

    losses: list[float]
    state: dict[str, Tensor] = field(default_factory=dict)


def endless(loader: PipelineLoader) -> Iterator[Any]:
    """Yield micro-batches, one epoch after the other."""
    while True:
        yield from loader


@functools.cache
def plan_of(run: Run, micro_batches: int) -> Plan:
    plan = partition(
        build(run),
        run.stages,
        example_inputs=batch(torch.Generator().manual_seed(0)),
        micro_batches=micro_batches,
        device="h100",
        checkpointing="all" if run.recompute else "none",
        dtype="bfloat16" if run.bf16 else None,
        schedule="dualpipev" if run.vee else "1f1b",
        gap=0.05,
    )
    if run.cut_seed is None:
        return plan
    return replace(
        plan, assignment=random_assignment(plan, random.Random(run.cut_seed))
    )


def make_optimizer(run: Run, groups: Any) -> torch.optim.Optimizer:
    if run.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(groups, lr=1e-2)


def make_engine(run: Run) -> tuple[Any, PipelineLoader]:
    replicas = dist.get_world_size() // run.stages
    plan = plan_of(run, MICRO_BATCHES // replicas)
    plan.graph.model.load_state_dict(build(run).state_dict())
    plan.graph.model.train()
    for parameter in plan.graph.model.parameters():
        parameter.grad = None
    schedule = {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0.001,
            "warmup_max_lr": 0.02,
            "warmup_num_steps": 4,
            "total_num_steps": 200,
        },
    }
    engine, *_ = plan.initialize(
        config={
            "steps_per_print": 10**9,
            "zero_optimization": {"stage": run.zero},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.5,
            **({"scheduler": schedule} if run.schedule else {}),
        },
        # As most recipes: biases and norms without decay.
        groups=[{"params": ["*.bias", nn.LayerNorm], "weight_decay": 0.0}],
        optimizer=partial(make_optimizer, run),
    )
    loader = engine.dataloader(samples(), seed=4)
    engine.attach("data", loader)
    return engine, loader


def train(
    run: Run,
    steps: int,
    *,
    load: tuple[Path, str | None] | None = None,
    save: dict[int, tuple[Path, str]] | None = None,
) -> Outcome:
    """Train up to a step, from the beginning or from a checkpoint.

    Args:
        run: What to train.
        steps: The last step.
        load: Folder and tag to begin with.
        save: After which steps to save, and where.
    """
    engine, loader = make_engine(run)
    torch.manual_seed(17 + dist.get_rank())
    if load is not None:
        engine.load_checkpoint(*load)
    outcome, data = Outcome(losses=[]), endless(loader)
    wanted = save or {}
    if engine.global_steps in wanted:
        engine.save_checkpoint(*wanted[engine.global_steps])
    while engine.global_steps < steps:
        outcome.losses.append(engine.train_batch(data).item())
        if engine.global_steps in wanted:
            engine.save_checkpoint(*wanted[engine.global_steps])
    outcome.state = stage_state(engine)
    engine.destroy()
    dist.barrier()
    return outcome


def stage_state(engine: Any) -> dict[str, Tensor]:
    """Return this stage's parameters and buffers under all their names."""
    found = itertools.chain.from_iterable(
        layer.state_dict().items() for layer in engine.module.local_layers()
    )
    return {name: value.detach().clone() for name, value in found}


def whole(outcomes: list[Outcome]) -> dict[str, Tensor]:
    """Join what the ranks hold."""
    state: dict[str, Tensor] = {}
    for outcome in outcomes:
        state |= outcome.state
    return state
