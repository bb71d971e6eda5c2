"""Weights whose gradients are put off get the ones that backward would have made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partitioner.runtime.gradient_sums import GradientSums
from partitioner.runtime.weight_gradients import PutOff, WeightGradients


class Products(nn.Module):
    """A product of every kind, one weight used twice, one input without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.twice = nn.Linear(8, 8, bias=False)
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.offset = nn.Parameter(torch.randn(8))
        self.image = nn.Conv2d(2, 3, 2, stride=2, padding="valid", groups=1)
        self.back = nn.ConvTranspose1d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.tanh(self.twice(self.first(x))))
        x = torch.addmm(self.offset, x.flatten(0, 1), self.matrix).tanh()
        x = self.image(x.reshape(-1, 2, 4, 4))
        return self.back(x.flatten(2))


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def both(model: nn.Module, *inputs: Tensor) -> tuple[Any, Any, Any]:
    """Run backward twice; return plain gradients, those put off before and after."""
    plain, late = model, copy.deepcopy(model)
    gradients = WeightGradients(GradientSums())
    rests = []
    for x in inputs:
        plain(x.clone()).square().mean().backward()
        with gradients.put_off(late.parameters()):
            loss = late(x.clone()).square().mean()
        gradients.into = PutOff()
        rests.append(gradients.into)
        loss.backward()
    before = dict(gradients_of(late))
    for rest in rests:
        rest.run()
    return gradients_of(plain), before, gradients_of(late)


def check_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=name)


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_gradients_equal_and_come_only_when_they_are_made():
    torch.manual_seed(0)
    plain, before, after = both(Products(), leaf(4, 4, 6), leaf(4, 4, 6))
    late = {"first.weight", "twice.weight", "matrix", "image.weight", "back.weight"}
    assert {name for name, found in before.items() if found is None} == late
    check_equal(after, plain)


def test_gradient_of_the_input_is_backward_s_own():
    torch.manual_seed(0)
    model, x = Products(), leaf(4, 4, 6)
    model(x).sum().backward()
    wanted, x.grad = x.grad, None
    with WeightGradients(GradientSums()).put_off(model.parameters()):
        loss = model(x).sum()
    loss.backward()
    torch.testing.assert_close(x.grad, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("hook", ["hook", "post_accumulate_grad_hook"])
def test_a_gradient_that_somebody_watches_is_made_at_once(hook):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    gradients: list[Any] = []
    getattr(model[1].weight, f"register_{hook}")(gradients.append)
    with WeightGradients(GradientSums()).put_off(model.parameters()):
        loss = model(leaf(2, 3)).sum()
    loss.backward()
    assert len(gradients) == 1
    assert model[1].weight.grad is not None
    assert model[0].weight.grad is None


def test_what_is_frozen_stays_without_gradient():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.requires_grad = False
    plain, _, after = both(model, leaf(2, 3))
    assert after.pop("1.weight") is plain.pop("1.weight") is None
    check_equal(after, plain)


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inside, self.after = nn.Linear(3, 3), nn.Linear(3, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        inside: Any = checkpoint(self.inside, x, use_reentrant=self.reentrant)
        return self.after(inside.tanh())


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_in_backward_is_left_alone(reentrant):
    plain, before, after = both(Checkpointed(reentrant=reentrant), leaf(2, 3))
    assert before["inside.weight"] is not None
    assert before["after.weight"] is None
    check_equal(after, plain)


def test_under_autocast_nothing_is_put_off():
    model, gradients = nn.Linear(3, 3), WeightGradients(GradientSums())
    late = gradients.put_off(model.parameters())
    with torch.autocast("cpu", torch.bfloat16), late:
        loss = model(leaf(2, 3)).sum()
    loss.backward()
    assert model.weight.grad is not None


def test_nothing_is_put_off_without_gradients():
    model, x = nn.Linear(3, 3), leaf(2, 3)
    with torch.no_grad(), WeightGradients(GradientSums()).put_off(model.parameters()):
        found = model(x)
    assert not found.requires_grad


def test_weights_are_themselves_again_also_after_an_error():
    model, x = nn.Linear(3, 3), leaf(2, 4)
    gradients = WeightGradients(GradientSums())
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        gradients.put_off(model.parameters()),
    ):
        model(x)
    assert {type(weight) for weight in model.parameters()} == {nn.Parameter}


def test_what_a_weight_is_computed_into_is_a_plain_tensor():
    model = nn.Linear(3, 3)
    with WeightGradients(GradientSums()).put_off(model.parameters()):
        found = model.weight.detach(), model.weight * 2, model(leaf(2, 3))
    assert {type(tensor) for tensor in found} == {Tensor}


def test_a_parameter_of_a_class_of_its_own_is_left_alone():
    class Own(nn.Parameter):
        pass

    model = nn.Linear(3, 3)
    model.weight = Own(model.weight.detach())
    with WeightGradients(GradientSums()).put_off(model.parameters()):
        loss = model(leaf(2, 3)).sum()
    loss.backward()
    assert model.weight.grad is not None
