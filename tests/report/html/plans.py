"""Plans whose pages are looked at: three of the zoo, and one of 126 layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from partitioner import Plan, partition
from partitioner.plan.page import page_document
from partitioner.report.html import html_page
from tests.zoo.entry import example
from tests.zoo.registry import ENTRIES

ZOO = ("gpt-2", "t5", "u-net")
LAYERS = 126


@cache
def zoo_plan(name: str) -> Plan:
    """A model of the zoo on three stages."""
    entry = ENTRIES[name]
    return partition(
        entry.build(),
        3,
        example_inputs=example(entry),
        micro_batches=6,
        device="h100",
    )


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform."""
        h = self.norm(x)
        mixed = nn.functional.scaled_dot_product_attention(
            self.query(h), self.key(h), self.value(h)
        )
        x = x + self.out(mixed)
        return x + self.down(torch.relu(self.up(x)))


class Deep(nn.Module):
    """As many layers as the largest Llama has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(16) for _ in range(LAYERS))
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@cache
def deep_plan() -> Plan:
    """A model of 126 layers on eight stages, 32 micro-batches."""
    inputs: Any = torch.zeros(2, 4, 16)
    return partition(Deep(), 8, example_inputs=inputs, micro_batches=32, device="h100")


@cache
def document_of(name: str) -> dict[str, Any]:
    """What the page of a plan shows; not to be changed."""
    return page_document(deep_plan() if name == "deep" else zoo_plan(name))


@cache
def page_of(name: str) -> str:
    """The page of a plan."""
    return html_page(document_of(name))
