"""A small model with ties inside, its batches and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["MICRO_BATCHES", "loss_of", "make_model", "micro_batches"]

VOCABULARY, WIDTH, MICRO_BATCHES, STEPS = 13, 8, 4, 4


class Block(nn.Module):
    """Which torch.compile cannot take as one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inside = nn.Linear(WIDTH, 2 * WIDTH)
        self.outside = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inside(self.norm(x)))
        torch._dynamo.graph_break()
        return x + self.outside(hidden)


class Tied(nn.Module):
    """Embedding and head share their weight, and so do two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight
        first, last = (self.get_submodule(f"blocks.{i}.inside") for i in (0, 2))
        last.weight = first.weight

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.embed(ids)))
        return result


def loss_of(logits: Tensor, labels: dict[str, Any]) -> Tensor:
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels["ids"].flatten(), label_smoothing=0.1
    )
    return loss * labels["scale"]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Tied().train()


def micro_batches(replica: int, lengths: Sequence[int] = (5,)) -> list[list[Any]]:
    """Return (inputs, labels) by step, of a replica; sequence lengths take turns."""
    generator = torch.Generator().manual_seed(replica)

    def make(index: int) -> tuple[Tensor, dict[str, Any]]:
        shape = (3, lengths[index % len(lengths)])
        pair = [torch.randint(0, VOCABULARY, shape, generator=generator) for _ in "ab"]
        # No tensor, and another number for every micro-batch.
        return pair[0], {"ids": pair[1], "scale": 0.5 + index / 4}

    return [
        [make(step + index) for index in range(MICRO_BATCHES)] for step in range(STEPS)
    ]
