"""What the hand-made cases are built from: sizes, data, and a chain of parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "MICRO_BATCHES",
    "ROWS",
    "STEPS",
    "VOCABULARY",
    "WIDTH",
    "Parts",
    "micro_batches",
    "supervised",
    "tokens",
    "vectors",
]

ROWS, WIDTH, VOCABULARY = 3, 8, 11
MICRO_BATCHES, STEPS = 4, 3


def micro_batches(make: Any, replica: int) -> list[list[Any]]:
    generator = torch.Generator().manual_seed(100 + replica)
    return [[make(generator) for _ in range(MICRO_BATCHES)] for _ in range(STEPS)]


def vectors(replica: int) -> list[list[Any]]:
    def make(generator: torch.Generator) -> Any:
        return tuple(torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2))

    return micro_batches(make, replica)


def tokens(replica: int) -> list[list[Any]]:
    def make(generator: torch.Generator) -> Any:
        return tuple(
            torch.randint(0, VOCABULARY, (ROWS, 5), generator=generator)
            for _ in range(2)
        )

    return micro_batches(make, replica)


class Parts(nn.Module):
    """Calls its parts one after the other, as the pipeline's segments do."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *values: Any) -> Any:
        for part in self.children():
            result = part(*values)
            values = result if isinstance(result, tuple) else (result,)
        return values[0] if len(values) == 1 else values


def supervised(loss: Any) -> Any:
    def forward(model: nn.Module, batch: Any) -> Tensor:
        inputs, target = batch
        result: Tensor = loss(model(inputs), target)
        return result

    return forward
