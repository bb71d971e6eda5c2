"""Cases to judge: small models, planned."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from partitioner import Plan, partition
from partitioner.assess import Case


class Block(nn.Module):
    """A residual block with a width of its own."""

    def __init__(self, width: int, inside: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inside)
        self.down = nn.Linear(inside, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Tower(nn.Module):
    """Embedding, blocks of which every third is wide, a norm and a head."""

    def __init__(self, blocks: int = 6, width: int = 256, vocabulary: int = 64) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, width * (1 if i % 3 else 4)) for i in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x) * self.scale)


TOKENS = torch.zeros(8, 512, dtype=torch.long)


def planned(model: nn.Module, stages: int, inputs=TOKENS, **options) -> Plan:
    """Plan for a fast device, so that prices are those of work and not of launches."""
    settings = {"device": "cpu", "checkpointing": "auto", **options}
    return partition(model, stages, example_inputs=inputs, **settings)


@cache
def tower(stages: int = 3, **options) -> Plan:
    """A plan of the tower."""
    with torch.device("meta"):
        model = Tower()
    return planned(model, stages, **options)


def case_of(plan: Plan) -> Case:
    """What a plan gives its judges."""
    return Case(
        costed=plan.costed,
        problem=plan.problem,
        units=plan.units,
        assignment=plan.assignment,
        options=plan.options,
    )
