"""Train a model of which whole stages are frozen, as a pipeline or in one process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Plan, partition
from tests.distributed.frozen_cases import CASES, CLIPPING, DUAL, Frozen

__all__ = [
    "CASES",
    "DUAL",
    "Frozen",
    "Outcome",
    "build",
    "original",
    "train",
    "train_all",
]

WORDS, WIDTH, STEPS = 11, 8, 4


class Block(nn.Module):
    """A residual block with weights, biases and maybe statistics."""

    def __init__(self, *, statistics: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if statistics else nn.LayerNorm(WIDTH)
        self.inside = nn.Linear(WIDTH, 2 * WIDTH)
        self.outside = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inside(self.norm(x)))
        result: Tensor = x + self.outside(hidden)
        return result


class Layered(nn.Module):
    """An embedding, four blocks and a head, which may share the table."""

    def __init__(self, *, tied: bool, statistics: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block(statistics=statistics) for _ in range(4)))
        self.head = nn.Linear(WIDTH, WORDS)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.embed(words)))
        return result


@dataclass(kw_only=True)
class Outcome:
    """Losses and norms by step, the loss of an evaluation, the final state."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    evaluated: float = 0.0
    state: dict[str, Tensor] = field(default_factory=dict)
    trains: int = 0
    """Parameters of this rank's segments that require grad."""


def build(case: Frozen) -> nn.Module:
    torch.manual_seed(0)
    model = Layered(tied=case.tied, statistics=case.statistics).train()
    for name, parameter in model.named_parameters():
        if name.startswith(case.frozen):
            parameter.requires_grad_(False)
    return model


def batches(case: Frozen, replica: int) -> list[list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(replica)

    def words() -> Tensor:
        return torch.randint(0, WORDS, (6,), generator=generator)

    return [
        [(words(), words()) for _ in range(case.micro_batches)] for _ in range(STEPS)
    ]


def loss_of(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.float(), labels)


def optimizer(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2, eps=1e-4, weight_decay=0.1)


def original(case: Frozen, replicas: int = 1) -> Outcome:
    """Train the model in this process, in float32."""
    model = build(case)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    decay = [p for n, p in named.items() if not n.endswith("bias")]
    free = [p for n, p in named.items() if n.endswith("bias")]
    groups = [{"params": decay}, {"params": free}]
    if case.groups:
        groups[1]["weight_decay"] = 0.0  # type: ignore[assignment]
    steps = optimizer([group for group in groups if group["params"]])
    outcome, data = Outcome(), [batches(case, replica) for replica in range(replicas)]
    for step in zip(*data, strict=True):
        steps.zero_grad()
        losses = [loss_of(model(x), y) for replica in step for x, y in replica]
        loss = torch.stack(losses).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        steps.step()
        outcome.losses.append(loss.item())
        outcome.norms.append(norm.item())
    model.eval()
    with torch.no_grad():
        firsts = [loss_of(model(x), y) for replica in data for x, y in replica[0]]
    outcome.evaluated = torch.stack(firsts).mean().item()
    outcome.state = {n: t.clone() for n, t in model.state_dict().items()}
    return outcome


def plan_of(case: Frozen) -> Plan:
    pins: dict[Any, int] = {
        f"blocks.{number}": stage for number, stage in enumerate(case.pin)
    }
    return partition(
        build(case),
        case.ranks,
        example_inputs=torch.zeros(6, dtype=torch.int64),
        micro_batches=case.micro_batches,
        device="h100",
        dtype=case.dtype,
        checkpointing="all" if case.recompute else "none",
        schedule="dualpipev" if case.vee else "1f1b",
        pin={"embed": 0, "head": -1, **pins},
    )


def engine_of(case: Frozen) -> Any:
    rules = [{"params": "*bias", "weight_decay": 0.0}] if case.groups else ()
    engine, *_ = plan_of(case).initialize(
        loss_of,
        optimizer=optimizer,
        groups=rules,
        zero_bubble=case.zero_bubble,
        config={
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": CLIPPING,
            **case.config,
        },
    )
    return engine


def train(
    case: Frozen,
    *,
    load: tuple[Path, str] | None = None,
    save: tuple[int, Path, str] | None = None,
) -> Outcome:
    """Train this rank's stage.

    Args:
        case: What is frozen.
        load: Folder and tag of the checkpoint to go on from.
        save: The step after which to save, folder and tag.
    """
    engine = engine_of(case)
    if load is not None:
        engine.load_checkpoint(*load)
    data, outcome = batches(case, engine.grid.get_data_parallel_id()), Outcome()
    for batch in data[engine.global_steps :]:
        outcome.losses.append(engine.train_batch(iter(batch)).item())
        outcome.norms.append(float(engine.get_global_grad_norm()))
        if save is not None and engine.global_steps == save[0]:
            engine.save_checkpoint(*save[1:])
    outcome.evaluated = engine.eval_batch(iter(data[0])).item()
    for layer in engine.module.local_layers():
        outcome.trains += sum(p.requires_grad for p in layer.parameters())
        for name, value in layer.state_dict().items():
            outcome.state[name] = value.detach().clone()
    engine.destroy()
    dist.barrier()
    return outcome


def train_all(names: list[str]) -> list[Outcome]:
    """Train this rank's stage of several cases."""
    return [train((CASES | DUAL)[name]) for name in names]


def resume(root: Path, stages: int) -> Outcome:
    """Save with a frozen middle stage of three, or go on from there on two stages."""
    if stages == 3:
        return train(CASES["3, middle"], save=(2, root, "frozen"))
    case = replace(CASES["3, middle"], stages=2, pin=(0, 1, 1, 1))
    return train(case, load=(root, "frozen"))
