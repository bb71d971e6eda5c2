"""Operators on fakes go to their mode at once, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from partitioner.capture.dispatch import FakeDispatch, OperatorWatch
from partitioner.errors import DataDependentError

FAKES = FakeTensorMode(allow_non_fake_inputs=True)


def fake(*shape: int) -> Tensor:
    return FAKES.from_tensor(torch.empty(shape)).requires_grad_()


def facts(tensor: Tensor) -> Any:
    grad_fn = type(tensor.grad_fn).__name__
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, grad_fn)


def by_linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight)


def in_place(x: Tensor, weight: Tensor) -> Tensor:
    return (x * 2).transpose(0, 1).add_(1.0)


def with_constants(x: Tensor, weight: Tensor) -> Tensor:
    return x + torch.arange(x.shape[-1])


@pytest.mark.parametrize("function", [by_linear, in_place, with_constants])
def test_results_look_as_without_it(function: Any):
    x, weight = fake(2, 3, 4), fake(5, 4)
    expected = function(x, weight)
    with FakeDispatch(FAKES):
        found = function(x, weight)
    assert isinstance(found, FakeTensor)
    assert facts(found) == facts(expected)


def test_memory_is_shared_and_counted_as_without_it():
    x = fake(2, 3, 4).detach()
    with FakeDispatch(FAKES):
        view = x.view(6, 4)
        flat = torch.ops.aten._unsafe_view(x, (24,))
        before = x._version
        view.add_(1.0)
    assert x._version == before + 1
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert flat.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert flat._version == 0


def test_operators_without_fakes_compute():
    with FakeDispatch(FAKES):
        found = torch.arange(3) + 1
    assert type(found) is Tensor
    assert found.tolist() == [1, 2, 3]


def test_operators_of_functions_are_refused_by_their_line():
    with FakeDispatch(FAKES), pytest.raises(DataDependentError, match="cond"):
        torch.ops.higher_order.cond(
            torch.tensor(True), torch.sin, torch.cos, (fake(2),)
        )


def test_draws_statistics_and_reads_are_told():
    seen: list[str] = []
    watch = OperatorWatch(
        FAKES,
        on_draw=lambda: seen.append("draw"),
        on_write=lambda tensor: seen.append("write"),
        on_read=lambda: seen.append("read"),
    )
    mean, var = fake(3).detach(), fake(3).detach()
    mask = torch.ones(2, dtype=torch.bool)
    with watch:
        fake(2, 3).relu()
        assert seen == []
        torch.nn.functional.dropout(fake(2, 3))
        assert seen == ["draw"]
        torch.nn.functional.batch_norm(fake(2, 3), mean, var, training=False)
        assert seen == ["draw"]
        torch.nn.functional.batch_norm(fake(2, 3), mean, var, training=True)
        assert seen == ["draw", "write", "write"]
        torch.ones(2)[mask]
    assert seen == ["draw", "write", "write", "read"]
