"""Train a partitioned model on this rank, or the original in one process."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Plan, partition
from tests.models import MODELS
from tests.placements import assignment_through, random_assignment

STEPS = 5
Batch = Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training run; equal on the ranks and in the original's process."""

    model: str
    stages: int
    micro_batches: int = 4
    optimizer: str = "sgd"
    checkpointing: str = "none"
    cut_seed: int | None = None
    """None: the solver's own cut; a number: random legal cuts."""
    through: str | None = None
    """With a cut seed: one cut goes through a module whose path matches this."""
    clipping: float = 0.0
    steps: int = STEPS

    def __str__(self) -> str:
        cut = "" if self.cut_seed is None else f"-cut{self.cut_seed}"
        return (
            f"{self.model}-{self.stages}st-{self.micro_batches}mb-{self.optimizer}"
            f"-{self.checkpointing}{cut}{'-clip' if self.clipping else ''}"
        )


@dataclass(kw_only=True)
class Outcome:
    """What a run left behind; a rank has the state of its own stage."""

    aliases: dict[str, str]
    """Every parameter's name → the first name of the same tensor (original only)."""
    losses: list[float]
    state: dict[str, Tensor]
    norms: list[float]
    evaluated: float


def loss_of(model: str) -> Callable[[Any, Any], Tensor] | None:
    """Return the loss function; None where the model computes its own."""
    return None if model.endswith("-labels") else _cross_entropy


def _cross_entropy(output: Any, labels: Tensor) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    )


def batches(case: Case) -> list[list[Batch]]:
    """Return (inputs, labels) pairs, or dicts with labels, by step."""
    entry = MODELS[case.model]
    generator = torch.Generator().manual_seed(5)
    return [
        [_batch(case.model, entry, generator) for _ in range(case.micro_batches)]
        for _ in range(case.steps)
    ]


def _batch(name: str, entry: Any, generator: torch.Generator) -> Batch:
    inputs = entry.batch(2, generator)
    if name.endswith("-labels"):
        return inputs
    if name in ("gpt2", "llama"):
        labels = inputs["input_ids"].clone()
    elif name in ("t5", "whisper"):
        labels = inputs["decoder_input_ids"].clone()
    else:
        labels = torch.randint(0, 2, (2,), generator=generator)
    return inputs, labels


def make_optimizer(case: Case, parameters: Any) -> torch.optim.Optimizer:
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-3)


def train_original(case: Case) -> Outcome:
    """Train the unpartitioned model in this process with the same accumulation."""
    model = MODELS[case.model].model(dropout=0.0)
    optimizer = make_optimizer(case, model.parameters())
    outcome = Outcome(aliases={}, losses=[], state={}, norms=[], evaluated=0.0)
    data = batches(case)
    for micro_batches in data:
        optimizer.zero_grad()
        total = 0.0
        for batch in micro_batches:
            loss = _loss(case, model, batch)
            (loss / case.micro_batches).backward()
            total += loss.item() / case.micro_batches
        limit = case.clipping or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        outcome.losses.append(total)
        outcome.norms.append(norm.item())
    model.eval()
    with torch.no_grad():
        losses = [_loss(case, model, batch).item() for batch in data[0]]
    outcome.evaluated = sum(losses) / len(losses)
    named = model.named_parameters(remove_duplicate=False)
    outcome.state = {name: value.detach().clone() for name, value in named}
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        outcome.aliases[name] = first.setdefault(id(parameter), name)
    outcome.state |= {name: b.detach().clone() for name, b in model.named_buffers()}
    return outcome


def _loss(case: Case, model: nn.Module, batch: Batch) -> Tensor:
    loss_fn = loss_of(case.model)
    if loss_fn is None:
        loss: Tensor = model(**batch).loss
        return loss
    inputs, labels = batch
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return loss_fn(output, labels)


@functools.cache
def _planned(model: str, stages: int, micro_batches: int, checkpointing: str) -> Plan:
    """Plan once on each rank; every case starts from the same weights."""
    entry = MODELS[model]
    return partition(
        entry.model(dropout=0.0),
        stages,
        example_inputs=entry.example(),
        micro_batches=micro_batches,
        device="h100",
        checkpointing=checkpointing,  # type: ignore[arg-type]
        gap=0.05,
    )


def train_stages(cases: list[Case]) -> list[Outcome]:
    """Train this rank's stage of every case, one after the other."""
    return [_train_stage(case) for case in cases]


def _train_stage(case: Case) -> Outcome:
    plan = _planned(case.model, case.stages, case.micro_batches, case.checkpointing)
    fresh = MODELS[case.model].model(dropout=0.0)
    plan.graph.model.load_state_dict(fresh.state_dict())
    plan.graph.model.train()
    for parameter in plan.graph.model.parameters():
        parameter.grad = None
    if case.cut_seed is not None:
        rng = random.Random(case.cut_seed)
        if case.through is None:
            assignment = random_assignment(plan, rng)
        else:
            assignment = assignment_through(plan, case.through, rng)
        plan = replace(plan, assignment=assignment)
    engine, *_ = plan.initialize(
        loss_of(case.model),
        config={"gradient_clipping": case.clipping, "steps_per_print": 10**9},
        optimizer=lambda parameters: make_optimizer(case, parameters),
    )
    outcome = Outcome(aliases={}, losses=[], state={}, norms=[], evaluated=0.0)
    data = batches(case)
    for micro_batches in data:
        outcome.losses.append(engine.train_batch(iter(micro_batches)).item())
        norm = engine.get_global_grad_norm()
        outcome.norms.append(0.0 if norm is None else float(norm))
    outcome.evaluated = engine.eval_batch(iter(data[0])).item()
    for layer in engine.module.forward_funcs:
        for name, value in layer.named_parameters(remove_duplicate=False):
            outcome.state[name] = value.detach().clone()
        for name, value in layer.named_buffers():
            outcome.state[name] = value.detach().clone()
    engine.destroy()
    dist.barrier()
    return outcome
