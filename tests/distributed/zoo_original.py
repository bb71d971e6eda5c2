"""Train the original of a run in this process."""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner.capture import capture
from partitioner.capture.session import set_mode
from partitioner.verify.seeding import Seeding
from tests.distributed.zoo_runs import (
    MICRO_BATCHES,
    MODELS,
    Outcome,
    Task,
    batches,
    loss_of,
    make_optimizer,
    modes_of,
)
from tests.zoo.entry import built, example, no_caches

__all__ = ["Reference", "reference"]


@dataclass(kw_only=True)
class Reference(Outcome):
    """What the original left behind, with everything that it holds."""

    draws: bool = False
    """It draws random numbers."""
    each: list[float] = field(default_factory=list)
    """The losses of single micro-batches, in training and in evaluation."""
    movement: float = 0.0
    """The most that training changes an element of a parameter."""
    norms: list[float] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Every parameter's name → the first name of the same tensor."""
    moved: set[str] = field(default_factory=set)
    """Names of what training changed."""


@functools.cache
def reference(task: Task) -> Reference:
    """Train the original with the same accumulation, and the same draws."""
    model = built(MODELS[task.name])
    found = _Original(task, model, None).train()
    if not found.draws:
        return found
    model = built(MODELS[task.name])
    graph = capture(
        model, example(MODELS[task.name]), dtype=torch.bfloat16 if task.bf16 else None
    )
    found = _Original(task, model, Seeding(graph)).train()
    found.draws = True
    return found


class _Original:
    """One training in this process.

    In bf16 as DeepSpeed does it: weights, inputs and gradients in bf16, the optimizer
    on float32 copies; floating buffers stay what they are.
    """

    def __init__(self, task: Task, model: nn.Module, seeding: Seeding | None) -> None:
        self.task, self.model, self.seeding = task, model, seeding
        self.each: list[float] = []
        no_caches(model)
        if task.rounded:
            for parameter in model.parameters():
                parameter.data = _narrow(parameter.data).to(parameter.dtype)
        trained = [p for p in model.parameters() if p.requires_grad]
        self.pairs = [(p, p) for p in trained]
        if task.bf16:
            masters = [nn.Parameter(p.detach().clone()) for p in trained]
            self.pairs = list(zip(trained, masters, strict=True))
            for parameter in model.parameters():
                parameter.data = _narrow(parameter.data)
        self.optimizer = make_optimizer([master for _, master in self.pairs])

    def train(self) -> Reference:
        """Run all steps, then evaluate on the first batch."""
        named = list(self.model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        found = Reference(aliases={n: first.setdefault(id(p), n) for n, p in named})
        before, generators = self._state(), _generators()
        started = time.perf_counter()
        replicas = range(self.task.replicas)
        data = [batches(MODELS[self.task.name], replica) for replica in replicas]
        for step in zip(*data, strict=True):
            loss, norm = self._step(list(step))
            found.losses.append(loss)
            found.norms.append(norm)
        found.draws = generators != _generators()
        found.modes = modes_of(self.model)
        set_mode(self.model, training=False)
        with torch.no_grad():
            micro_batches = itertools.chain(*(batch[0] for batch in _again(self.task)))
            losses = [self._loss(batch).item() for batch in micro_batches]
        found.evaluated = sum(losses) / len(losses)
        found.each = [*self.each, *losses]
        found.seconds = time.perf_counter() - started
        after = self._state()
        found.moved = {n for n, v in after.items() if not torch.equal(v, before[n])}
        found.parameters = {n: after[n] for n, _ in named}
        changes = [(after[n] - before[n]).abs().max().item() for n, _ in named]
        found.movement = max(changes)
        found.buffers = {n: v for n, v in after.items() if n not in found.parameters}
        return found

    def _step(self, by_replica: list[list[Any]]) -> tuple[float, float]:
        """Take one step on the micro-batches of all replicas; return loss and norm."""
        total = 0.0
        share = 1 / self.task.replicas
        for _, master in self.pairs:
            # DeepSpeed steps on zeros where a batch made no gradient, not on None.
            master.grad = torch.zeros_like(master)
        for micro_batches in by_replica:
            with self._gradients(share):
                for batch in micro_batches:
                    loss = self._loss(batch)
                    (loss / MICRO_BATCHES).backward()
                    self.each.append(loss.item())
                    total += loss.item() / MICRO_BATCHES * share
        limit = self.task.clipping or float("inf")
        masters = [master for _, master in self.pairs]
        norm = torch.nn.utils.clip_grad_norm_(masters, limit)
        self.optimizer.step()
        for parameter, master in self.pairs:
            if parameter is not master:
                parameter.data.copy_(master.data)
        return total, norm.item()

    @contextmanager
    def _gradients(self, share: float) -> Iterator[None]:
        """Accumulate one replica's gradients by themselves, and add their share."""
        kept = [master.grad for _, master in self.pairs]
        for parameter, _ in self.pairs:
            parameter.grad = None
        yield
        for (parameter, master), before in zip(self.pairs, kept, strict=True):
            found, parameter.grad = parameter.grad, None
            master.grad = before
            if found is not None and before is not None:
                before.add_(found.to(before.dtype), alpha=share)

    def _state(self) -> dict[str, Tensor]:
        """Copy weights (what the optimizer works on) and buffers, by every name."""
        masters = {id(parameter): master for parameter, master in self.pairs}
        named = itertools.chain(
            self.model.named_parameters(remove_duplicate=False),
            self.model.named_buffers(remove_duplicate=False),
        )
        return {n: masters.get(id(v), v).detach().clone() for n, v in named}

    def _loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        if self.task.bf16:
            inputs = pytree.tree_map(_narrow, inputs)
        if self.seeding is None:
            return loss_of(_call(self.model, inputs), labels)
        with self.seeding.following():
            output = _call(self.model, inputs)
        return loss_of(output, labels)


def _again(task: Task) -> list[list[list[Any]]]:
    """Return the batches as they were: a model may write to its inputs."""
    return [batches(MODELS[task.name], replica) for replica in range(task.replicas)]


def _narrow(leaf: Any) -> Any:
    floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(torch.bfloat16) if floating else leaf


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _generators() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        repr(np.random.get_state()),
    )
