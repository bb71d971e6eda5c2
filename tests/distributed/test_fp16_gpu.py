"""float16 with loss scaling trains as in one process, and skips a step everywhere.

DeepSpeed refuses float16 on CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.fp16_stage import (
    LEARNING_RATE,
    MICRO_BATCHES,
    OVERFLOWS,
    SCALE_POWER,
    STEPS,
    WINDOW,
    batches,
    build,
)
from tests.distributed.gpus import needs_two_gpus, on_two_gpus

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400), needs_two_gpus]

ROUNDOFF = 2.0**-11
"""Relative error of rounding to float16."""
TOLERANCE = 2 * (MICRO_BATCHES + 1) * ROUNDOFF
"""Both runs sum M rounded gradients and round the sum; scale and M are powers of two,
by which float16 divides exactly."""


def alone(device: str) -> dict[str, Any]:
    """Train in one process: float16 weights, their float32 masters, the same scale."""
    model, loss = (module.half().to(device) for module in build())
    named = {
        **dict(model.named_parameters()),
        **{f"loss_fn.{name}": each for name, each in loss.named_parameters()},
    }
    masters = {
        name: nn.Parameter(each.detach().float()) for name, each in named.items()
    }
    steps = torch.optim.SGD(masters.values(), lr=LEARNING_RATE, momentum=0.9)
    scale = 2.0**SCALE_POWER
    seen: dict[str, Any] = {"losses": [], "norms": [], "states": [], "scales": []}
    skipped = -1
    for step, micro_batches in enumerate(batches()):
        total = 0.0
        for ids, labels in micro_batches:
            moved = {name: value.to(device) for name, value in labels.items()}
            found = loss(model(ids.to(device)), moved)
            (found.float() * scale / MICRO_BATCHES).backward()
            total += found.item() / MICRO_BATCHES
        norm = _unscale(named, masters, scale)
        if torch.isfinite(norm):
            steps.step()
            since = step - skipped - 1
            scale *= 2 if since > 0 and since % WINDOW == 0 else 1
        else:
            scale, skipped = scale / 2, step
        with torch.no_grad():
            for name, each in named.items():
                each.copy_(masters[name])
                each.grad = None
        seen["losses"].append(total)
        seen["norms"].append(norm.item())
        seen["scales"].append(scale)
        seen["states"].append({k: v.detach().float().cpu() for k, v in named.items()})
    return seen


def _unscale(
    named: dict[str, nn.Parameter], masters: dict[str, nn.Parameter], scale: float
) -> Tensor:
    for name, each in named.items():
        assert each.grad is not None
        masters[name].grad = each.grad.float() / scale
    gradients = [each.grad for each in masters.values() if each.grad is not None]
    return nn.utils.get_total_norm(gradients)


def test_training_equals_one_process_and_an_overflow_is_skipped_on_all(tmp_path):
    expected = alone("cuda")
    stages = on_two_gpus("tests.distributed.fp16_stage", tmp_path)
    for ranks in zip(*stages, strict=True):
        for rank in ranks:
            check(rank, expected)
        assert ranks[0]["norms"] == ranks[1]["norms"]
        held = [name for rank in ranks for name in rank["states"][-1]]
        assert sorted(held) == sorted(expected["states"][-1])


def check(rank: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rank["losses"] == pytest.approx(expected["losses"], rel=TOLERANCE)
    assert rank["norms"][OVERFLOWS] == float("inf")
    for step in set(range(STEPS)) - {OVERFLOWS}:
        assert rank["norms"][step] == pytest.approx(
            expected["norms"][step], rel=TOLERANCE
        )
    assert rank["skipped"] == [0] * OVERFLOWS + [1] * (STEPS - OVERFLOWS)
    assert rank["scales"] == expected["scales"]
    assert expected["scales"][-1] == 2 * expected["scales"][OVERFLOWS]
    before, after = (rank["states"][OVERFLOWS - back] for back in (1, 0))
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    for name, value in rank["states"][-1].items():
        torch.testing.assert_close(
            value, expected["states"][-1][name], rtol=TOLERANCE, atol=TOLERANCE
        )
