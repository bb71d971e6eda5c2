"""Values and gradients cross a boundary bit by bit."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from partitioner.errors import EmitError, RuntimeGuardError
from partitioner.runtime.wire import WireSpec
from partitioner.runtime.wire_value import WireValue


def value_spec(value: Tensor | int, *, name="v", differentiable=None, shape=None):
    if isinstance(value, int):
        return WireValue(
            name=name, kind="int", dtype=None, shape=(), differentiable=False
        )
    wanted = value.requires_grad if differentiable is None else differentiable
    return WireValue(
        name=name,
        kind="tensor",
        dtype=value.dtype,
        shape=tuple(value.shape) if shape is None else shape,
        differentiable=wanted,
        source="model.py:7",
    )


def spec_of(*values) -> WireSpec:
    return WireSpec(values=tuple(value_spec(value) for value in values))


def deliver(packed):
    """Do what DeepSpeed does to a message: copy it to fresh leaves."""
    tensors = (packed,) if isinstance(packed, Tensor) else packed
    leaves = []
    for tensor in tensors:
        assert tensor.is_contiguous()
        leaf = tensor.detach().clone()
        leaf.requires_grad = leaf.is_floating_point()
        leaves.append(leaf)
    return leaves


def cross(spec: WireSpec, values) -> tuple[Any, Any, Any]:
    """Send values over a boundary; return the token, the values and a backward."""
    packed = spec.pack(None, values)
    leaves = deliver(packed)
    token, *received = spec.unpack(leaves[0] if len(leaves) == 1 else tuple(leaves))
    carrier = packed if isinstance(packed, Tensor) else packed[0]

    def backward(loss: Tensor) -> None:
        loss.backward()
        assert leaves[0].grad is not None
        carrier.backward(gradient=leaves[0].grad)

    return token, received, backward


def grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


DIFFERENTIABLE = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DIFFERENTIABLE + COMPLEX, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4), (1, 1, 7)], ids=str)
def test_value_and_gradient_survive_bit_by_bit(dtype, shape):
    source = torch.randn(shape, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape, dtype=dtype)
    sent = source * 1
    _, (received,), backward = cross(spec_of(sent), [sent])
    assert received.dtype == dtype
    assert received.shape == sent.shape
    assert bits(received) == bits(sent)

    backward((received * weight).sum().abs())
    direct = source.detach().clone().requires_grad_()
    (direct * 1 * weight).sum().abs().backward()
    assert bits(grad_of(source)) == bits(grad_of(direct))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([True, False, True]),
        torch.tensor(True),
        torch.arange(6).reshape(2, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([-1, 2], dtype=torch.int8),
        torch.randn(3),
        torch.randn(3, dtype=torch.float64),
        torch.randn(2, 2, dtype=torch.bfloat16),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.empty(0, dtype=torch.int64),
    ],
    ids=lambda value: f"{value.dtype}{tuple(value.shape)}",
)
def test_values_without_gradient_survive_bit_by_bit(value):
    _, (received,), _ = cross(spec_of(value), [value])
    assert received.dtype == value.dtype
    assert received.shape == value.shape
    assert bits(received) == bits(value)
    assert not received.requires_grad


def test_mixed_boundary_keeps_order_and_alignment():
    values: list[Any] = [
        torch.tensor(True),
        torch.randn(3, dtype=torch.bfloat16, requires_grad=True) * 1,
        7,
        torch.randn(2, dtype=torch.float64, requires_grad=True) * 1,
        torch.arange(3),
        -(2**40),
        torch.randn(1, dtype=torch.float64),
        torch.randn(2, 2, requires_grad=True).t() * 1,
    ]
    spec = spec_of(*values)
    packed: Any = spec.pack(None, values)
    assert [tensor.dtype for tensor in packed] == [torch.float32, torch.uint8]
    _, received, _ = cross(spec, values)
    for sent, got in zip(values, received, strict=True):
        assert type(sent) is type(got)
        if isinstance(sent, Tensor):
            assert bits(got) == bits(sent)
        else:
            assert got == sent


def test_only_differentiable_values_make_a_bare_tensor():
    value = torch.randn(2, requires_grad=True) * 1
    packed = spec_of(value).pack(None, [value])
    assert isinstance(packed, Tensor)


def test_carrier_requires_grad_when_nothing_is_differentiable():
    value = torch.arange(3)
    carrier, rest = spec_of(value).pack(None, [value])
    assert carrier.requires_grad
    assert carrier.numel() == 1
    assert rest.dtype == torch.uint8


def test_token_alone_gives_the_carrier_a_gradient_of_zeros():
    value = torch.randn(2, requires_grad=True)
    sent = value * 3
    token, _, backward = cross(spec_of(sent), [sent])
    assert token.item() == 0.0
    assert token.dtype == torch.float32
    backward(token * 0)
    assert torch.equal(grad_of(value), torch.zeros(2))


def test_a_value_without_gradient_gets_zeros_beside_one_with():
    first = torch.randn(3, dtype=torch.bfloat16, requires_grad=True)
    second = torch.randn(2, requires_grad=True)
    sent = [first * 1, second * 1]
    token, received, backward = cross(spec_of(*sent), sent)
    backward(received[1].sum() * 2 + token * 0)
    assert torch.equal(grad_of(first), torch.zeros(3, dtype=torch.bfloat16))
    assert torch.equal(grad_of(second), torch.full((2,), 2.0))


def test_relay_sends_gradients_through_two_boundaries_in_one_backward_each():
    source = torch.randn(4, dtype=torch.float64, requires_grad=True)
    visits = []
    trunk = source * 2
    trunk.register_hook(lambda gradient: visits.append(gradient.clone()))
    sent = [trunk, (trunk * 3).float()]
    spec = spec_of(*sent)
    first: Any = spec.pack(None, sent)
    (leaf,) = deliver(first)
    token, *middle = spec.unpack(leaf)
    second: Any = spec.pack(token, middle)
    (last,) = deliver(second)
    token, wide, narrow = spec.unpack(last)
    (wide.sum() + narrow.double().sum() + token * 0).backward()
    second.backward(gradient=last.grad)
    first.backward(gradient=leaf.grad)
    assert len(visits) == 1
    assert torch.equal(grad_of(source), torch.full((4,), 8.0, dtype=torch.float64))


def test_same_tensor_twice_adds_its_gradients():
    source = torch.randn(2, requires_grad=True)
    sent = source * 1
    _, received, backward = cross(spec_of(sent, sent), [sent, sent])
    backward(received[0].sum() + 5 * received[1].sum())
    assert torch.equal(grad_of(source), torch.full((2,), 6.0))


@pytest.mark.parametrize("pattern", [0x7FC01234, 0xFFC0BEEF, 0x7F800001, 0x80000000])
def test_nan_payloads_survive_as_value_and_as_gradient(pattern):
    raw = torch.tensor(list(struct.pack("<I", pattern)), dtype=torch.uint8)
    pair = torch.cat([raw, raw]).view(torch.float64).requires_grad_()
    _, (received,), backward = cross(spec_of(pair), [pair])
    assert bits(received) == bits(pair)
    gradient = torch.cat([raw, raw]).view(torch.float64)
    received.register_hook(lambda _: gradient.clone())
    backward(received.sum())
    assert bits(grad_of(pair)) == bits(gradient)


def test_run_time_dimensions_and_integers_travel_in_the_header():
    spec = WireSpec(
        values=(
            value_spec(torch.randn(2, 3), differentiable=True, shape=(None, 3)),
            value_spec(5),
            value_spec(torch.ones(2, 4, dtype=torch.bool), shape=(None, None)),
        )
    )
    for size in (1, 4):
        values: list[Any] = [
            torch.randn(size, 3, requires_grad=True) * 1,
            size * 10,
            torch.rand(size, size + 2) > 0.5,
        ]
        _, received, _ = cross(spec, values)
        assert torch.equal(received[0], values[0])
        assert received[1] == size * 10
        assert torch.equal(received[2], values[2])


def test_received_values_may_be_written_in_place():
    sent = torch.randn(4, requires_grad=True) * 1
    other = torch.randn(4, requires_grad=True) * 1
    _, (first, second), backward = cross(spec_of(sent, other), [sent, other])
    first.mul_(2)
    assert torch.equal(second, other)
    backward(first.sum() + second.sum())


def test_gradient_is_no_view_of_the_receive_buffer():
    parameter = torch.nn.Parameter(torch.randn(3))
    packed: Any = spec_of(parameter).pack(None, [parameter])
    buffer = torch.ones(3)
    packed.backward(gradient=buffer)
    buffer.fill_(-1)
    assert torch.equal(grad_of(parameter), torch.ones(3))


def test_everything_works_without_gradients():
    values: list[Any] = [torch.randn(2), 3, torch.tensor([True])]
    spec = WireSpec(
        values=(
            value_spec(values[0], differentiable=True),
            value_spec(values[1]),
            value_spec(values[2]),
        )
    )
    with torch.no_grad():
        packed = spec.pack(None, values)
        token, *received = spec.unpack(packed)
        again = spec.pack(token, received)
    assert not received[0].requires_grad
    assert torch.equal(received[0], values[0])
    assert [bits(tensor) for tensor in again] == [bits(tensor) for tensor in packed]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (torch.randn(2, 3, dtype=torch.float64), "float64"),
        (torch.randn(2, 3, 1), r"shape \(2, 3, 1\)"),
        (torch.randn(2, 4), r"shape \(2, 4\)"),
        (7, "is a int"),
    ],
)
def test_guard_names_the_value_and_its_source(wrong, message):
    spec = WireSpec(
        values=(
            value_spec(
                torch.randn(2, 3), name="hidden", shape=(None, 3), differentiable=True
            ),
        )
    )
    with pytest.raises(RuntimeGuardError, match=message) as caught:
        spec.pack(None, [wrong])
    assert "'hidden' (model.py:7)" in str(caught.value)


def test_guard_refuses_to_lose_a_gradient():
    spec = WireSpec(values=(value_spec(torch.randn(2)),))
    with pytest.raises(RuntimeGuardError, match="requires grad"):
        spec.pack(None, [torch.randn(2, requires_grad=True)])


def test_a_gradient_that_reaches_no_output_is_dropped():
    value = torch.randn(2, requires_grad=True) * 1
    spec = WireSpec(
        (replace(value_spec(value, differentiable=False), drops_gradient=True),)
    )
    _, (received,), _ = cross(spec, [value])
    assert bits(received) == bits(value)
    assert not received.requires_grad


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_dimensions_keep_their_order_in_memory(
    order: tuple[int, ...], requires_grad: bool
):
    dense = torch.randn(2, 3, 4, requires_grad=requires_grad)
    value = dense.permute(order) * 1
    assert value.is_contiguous() == (order == (0, 1, 2))
    _, (received,), _ = cross(spec_of(value), [value])
    assert torch.equal(received, value)
    assert received.stride() == value.stride()


def test_guard_refuses_another_number_of_values():
    value = torch.randn(2, requires_grad=True)
    with pytest.raises(RuntimeGuardError, match="2 values; the plan has 1"):
        spec_of(value).pack(None, [value, value])


def test_guard_refuses_what_another_boundary_sent():
    value = torch.randn(2, requires_grad=True)
    with pytest.raises(RuntimeGuardError, match=r"12 bytes; .* need 8"):
        spec_of(value).unpack(torch.zeros(3))
    with pytest.raises(RuntimeGuardError, match="uint8"):
        spec_of(value).unpack((torch.zeros(2), torch.zeros(1, dtype=torch.uint8)))


def test_a_boolean_cannot_be_declared_differentiable():
    with pytest.raises(EmitError, match="no gradient"):
        WireValue(
            name="mask", kind="tensor", dtype=torch.bool, shape=(), differentiable=True
        )
