from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from partitioner.cost.kernels import Kernel, KernelTrace, dtype_name
from partitioner.cost.operators import UNCOUNTED, formula, plain_name


def observed(function, *args):
    with KernelTrace() as trace:
        function(*args)
    return trace


def test_a_kernel_is_what_it_computes_and_moves():
    x, w = torch.zeros(3, 8), torch.zeros(8, 5)

    trace = observed(torch.mm, x, w)

    expected = Kernel(
        operator_class="matmul",
        dtype="float32",
        flops=2 * 3 * 8 * 5,
        nbytes=4 * (3 * 8 + 8 * 5 + 3 * 5),
    )
    assert trace.kernels == {expected: 1}


def test_views_and_allocations_are_no_kernels():
    x = torch.zeros(3, 8)

    trace = observed(lambda: torch.empty_like(x.view(8, 3).t()[1:].unsqueeze(0)))

    assert not trace.kernels
    assert not trace.unknown


def test_an_expanded_tensor_is_read_once():
    row = torch.zeros(1, 8).expand(100, 8)

    trace = observed(torch.neg, row)

    assert [kernel.nbytes for kernel in trace.kernels] == [4 * (8 + 800)]


def test_lists_of_tensors_are_read_too():
    trace = observed(torch.cat, [torch.zeros(3), torch.zeros(5)])

    assert [kernel.nbytes for kernel in trace.kernels] == [4 * 16]


def test_unknown_operators_are_counted_but_still_move_bytes():
    trace = observed(torch.linalg.det, torch.eye(3))

    assert trace.unknown["_linalg_det"] == 1
    assert any(kernel.nbytes for kernel in trace.kernels)


def test_the_in_place_form_shares_its_rule():
    assert plain_name(torch.ops.aten.add_) == "add" == plain_name(torch.ops.aten.add)
    assert plain_name(torch.ops.aten.__and__) == "__and__"


def test_no_operator_has_both_a_formula_and_an_exemption():
    both = {
        name
        for name in UNCOUNTED
        if hasattr(torch.ops.aten, name) and formula(getattr(torch.ops.aten, name))
    }

    assert not both


def test_dtypes_are_named_as_profiles_name_them():
    assert dtype_name(torch.bfloat16) == "bfloat16"


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [
        (50257, torch.bfloat16, "misaligned"),
        (50264, torch.bfloat16, "matmul"),
        (50257, torch.float32, "matmul"),
    ],
)
def test_rows_of_odd_length_in_half_types_are_misaligned(width, dtype, expected):
    with FakeTensorMode(), KernelTrace() as trace:
        torch.randn(16, 64, dtype=dtype) @ torch.randn(width, 64, dtype=dtype).T
    found = {kernel.operator_class for kernel in trace.kernels if kernel.flops}
    assert found == {expected}


def test_norms_are_classes_of_their_own():
    with FakeTensorMode(), KernelTrace() as trace:
        nn.LayerNorm(8)(torch.randn(2, 8))
        nn.BatchNorm2d(8)(torch.randn(2, 8, 4, 4))
    found = {kernel.operator_class for kernel in trace.kernels}
    assert {"normalisation", "batch_norm"} <= found
