"""The first module with a number that is not finite is named, with its stage."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partitioner import partition
from partitioner.emit.build import layer_specs
from partitioner.errors import RuntimeGuardError
from partitioner.runtime.finite import watch
from partitioner.runtime.labels import LabelsLayout
from partitioner.runtime.loss import LossHead


class Divides(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x / by


class Net(nn.Module):
    """Divides by an input: module ``quotient``, or an operation of the root."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.quotient = Divides() if inside else None

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        mask = torch.zeros(4).masked_fill(torch.arange(4) > 2, -torch.inf)
        x = torch.softmax(self.first(x) + mask, -1)
        x = x / by if self.quotient is None else self.quotient(x, by)
        return self.last(x)


def run(*, inside: bool, by: float, training: bool = True) -> Tensor:
    inputs = (torch.randn(2, 4), torch.ones(2, 4))
    net = Net(inside=inside).train()
    leaf = [Divides] if inside else []
    plan = partition(net, 2, example_inputs=inputs, device="h100", leaf=leaf)
    stages = nn.Sequential(*(spec.build() for spec in layer_specs(plan.layers)))
    head = LossHead(
        lambda output, _: output.sum(), None, plan.layers.rebuild, LabelsLayout()
    )
    watch(stages, head, number=1)
    stages.train(training)
    loss: Tensor = head(stages((inputs[0], torch.full((2, 4), by))), ())
    return loss


def test_finite_numbers_pass_and_masks_may_be_infinite():
    assert torch.isfinite(run(inside=True, by=2.0))


def test_the_module_is_named():
    with pytest.raises(RuntimeGuardError, match=r"stage 1, 'quotient' \(Divides\)"):
        run(inside=True, by=0.0)


def test_an_operation_outside_modules_is_told_by_what_it_was_made_for():
    with pytest.raises(RuntimeGuardError, match=r"computed for 'last'|segment"):
        run(inside=False, by=0.0)


def test_evaluation_is_not_watched():
    with torch.no_grad():
        assert not torch.isfinite(run(inside=True, by=0.0, training=False))


def test_a_loss_that_is_not_finite_is_told():
    head = LossHead(
        lambda output, _: output.log(), None, lambda leaves: leaves[0], LabelsLayout()
    )
    watch(nn.Sequential(), head, number=3)
    value = torch.tensor(-1.0, requires_grad=True)
    with pytest.raises(RuntimeGuardError, match="stage 3, the loss is nan"):
        head((torch.zeros(()), value), ())
