"""Sums of bfloat16 gradients are DeepSpeed's own, to the bit."""

from __future__ import annotations

from typing import Any

import deepspeed
import pytest
import torch
from torch import Tensor, nn

from partitioner import partition
from tests.distributed.engine_cases import FOUR, Tagger, pairs, tag_loss
from tests.distributed.launch import launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

STAGES = 2
SGD = {"type": "SGD", "params": {"lr": 0.1}}
"""Without momentum: a parameter shows what its gradient was."""


class WithUnused(Tagger):
    """One weight is used twice, one gets no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.blocks[0](self.blocks(self.embed(ids)))
        return self.head(hidden), hidden


def trained(*, ours: bool, zero_bubble: bool = False) -> tuple[dict[str, Tensor], list]:
    """Train three steps; return this rank's parameters, and the losses."""
    torch.manual_seed(0)
    model = WithUnused().train().bfloat16()
    plan = partition(
        model, STAGES, micro_batches=len(FOUR), device="h100", dtype="bfloat16"
    )
    config = {"steps_per_print": 10**9, "optimizer": SGD}
    engine: Any
    if ours:
        engine, *_ = plan.initialize(tag_loss, config=config, zero_bubble=zero_bubble)
    else:
        module = plan.pipeline_module(tag_loss)
        engine, *_ = deepspeed.initialize(model=module, config=plan.ds_config(**config))
        engine.set_batch_fn(plan.batch_fn)
    losses = [engine.train_batch(iter(pairs(seed, FOUR))).item() for seed in range(3)]
    found = {
        name: parameter.detach().clone()
        for name, parameter in engine.module.original_named_parameters()
    }
    engine.destroy()
    return found, losses


def all_ways() -> list[tuple[dict[str, Tensor], list]]:
    return [
        trained(ours=False),
        trained(ours=True),
        trained(ours=True, zero_bubble=True),
    ]


def test_sums_equal_deepspeed_s_and_those_put_off_differ_by_rounding():
    for stock, ours, late in launch(STAGES, all_ways, timeout_s=300.0):
        assert stock[1] == ours[1]
        assert late[1] == pytest.approx(stock[1], rel=2.0**-7)
        assert stock[0].keys() == ours[0].keys() == late[0].keys()
        for name, parameter in stock[0].items():
            torch.testing.assert_close(ours[0][name], parameter, rtol=0, atol=0)
            # bfloat16 keeps eight bits of the parameter and of each gradient.
            torch.testing.assert_close(
                late[0][name], parameter, rtol=2.0**-6, atol=2.0**-8
            )
