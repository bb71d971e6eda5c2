"""The loss's gradient carries the scale once, whoever multiplies it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead
from partitioner.runtime.loss_scaling import LossScaling


def engine(scale: float) -> Any:
    """Return what the method reads of an engine with four micro-batches."""
    return SimpleNamespace(
        _scale_is_missing=None,
        optimizer=SimpleNamespace(loss_scale=scale),
        gradient_accumulation_steps=lambda: 4,
    )


@pytest.mark.parametrize("by_deepspeed", [False, True])
def test_a_gradient_is_scaled_unless_deepspeed_has_scaled_it(by_deepspeed):
    made = engine(1.0)
    for scale in (1.0, 256.0, 128.0):
        made.optimizer.loss_scale = scale
        arrives = torch.tensor((scale if by_deepspeed else 1.0) / 4)
        assert LossScaling._scaled(made, arrives).item() == scale / 4


def test_the_head_starts_backward_with_the_changed_gradient():
    head = LossHead(
        lambda output, _: output.sum(), None, lambda x: x[0], LabelsLayout()
    )
    head.gradient_hook = lambda gradient: gradient * 8
    value = torch.ones(2, requires_grad=True)
    loss = head((torch.zeros((), requires_grad=True), value), ())
    assert loss.item() == 2.0
    loss.backward()
    assert value.grad is not None
    assert value.grad.tolist() == [8.0, 8.0]
