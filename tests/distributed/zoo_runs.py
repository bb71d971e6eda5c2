"""One training run of a model of the zoo: its data, its loss, what it leaves behind."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from partitioner.verify.run import tensor_leaves
from tests.distributed.tied_models import ENTRIES as TIED
from tests.zoo.entry import Entry, example, noise
from tests.zoo.registry import ENTRIES as ZOO

__all__ = [
    "MICRO_BATCHES",
    "MODELS",
    "Outcome",
    "Run",
    "Task",
    "batches",
    "loss_of",
    "make_optimizer",
    "modes_of",
]

MODELS: dict[str, Entry] = {**ZOO, **TIED}
MICRO_BATCHES, STEPS = 2, 3
LEARNING_RATE, MOMENTUM = 0.02, 0.9


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained: all that the original knows of."""

    name: str
    replicas: int = 1
    bf16: bool = False
    rounded: bool = False
    """It begins with weights that bf16 can hold, as all that is compared with bf16."""
    clipping: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training as a pipeline."""

    task: Task
    stages: int
    recomputed: bool = False
    """Every stage keeps its inputs alone."""
    zero: int = 0
    cut_seed: int | None = None
    """None: the solver's own cut; a number: random legal cuts."""
    seeded: bool = False
    """The model draws random numbers: each draw is seeded by what it is."""

    def __str__(self) -> str:
        cut = "" if self.cut_seed is None else f", cut {self.cut_seed}"
        return f"{self.task.name} on {self.stages}{cut}"


@dataclass(kw_only=True)
class Outcome:
    """What a run left behind; on a rank its own stage's state."""

    refused: str = ""
    """The error by which the model was refused before anything ran."""
    losses: list[float] = field(default_factory=list)
    evaluated: float = 0.0
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    modes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Path of every module → its class, and whether it is in train mode."""
    recomputed: int = 0
    """How many of its segments run again during backward."""
    seconds: float = 0.0


def modes_of(module: nn.Module) -> dict[str, tuple[str, bool]]:
    """Return the class and the mode of every module, by path."""
    named = module.named_modules(remove_duplicate=False)
    return {path: (type(each).__name__, each.training) for path, each in named}


def batches(entry: Entry, replica: int = 0) -> list[list[tuple[Any, Tensor]]]:
    """Return (inputs, labels) by step and micro-batch, no two of them equal."""
    count = itertools.count(replica * STEPS * MICRO_BATCHES)
    return [
        [_batch(entry, next(count)) for _ in range(MICRO_BATCHES)] for _ in range(STEPS)
    ]


def _batch(entry: Entry, number: int) -> tuple[Any, Tensor]:
    """Turn the samples round by one for each batch, and stretch what is floating."""

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        turned = leaf.roll(number, 0)
        return turned * (1 + 0.1 * number) if leaf.is_floating_point() else turned

    return pytree.tree_map(other, example(entry)), torch.tensor([0.1 * number])


def loss_of(output: Any, labels: Tensor) -> Tensor:
    """Return the distance of all that is floating in an output from fixed targets.

    Whatever form the output has. A loss of the model's own is one of its leaves.
    """
    total = torch.zeros(())
    for leaf in tensor_leaves(output):
        if leaf.is_complex():
            total = total + (leaf - noise(*leaf.shape)).abs().square().mean().float()
        elif leaf.is_floating_point():
            finite = torch.where(leaf.isfinite(), leaf, 0).float()
            total = total + (finite - noise(*leaf.shape) - labels).square().mean()
    return total


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
