"""A tensor made in an order is one whose memory has that order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partitioner.runtime.memory_order import (
    in_order,
    memory_order,
    reordered,
    unusual_order,
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=5))
    return shape, draw(st.permutations(range(len(shape))))


@given(layouts())
def test_what_is_made_in_an_order_has_it(layout):
    shape, order = layout
    made = in_order(shape, order, torch.zeros)
    assert list(made.shape) == shape
    if 0 in shape:  # there is nothing to lie anywhere
        return
    again = in_order(shape, memory_order(made), torch.zeros)
    long = [dim for dim, size in enumerate(shape) if size > 1]
    assert [again.stride(dim) for dim in long] == [made.stride(dim) for dim in long]
    assert [dim for dim in memory_order(made) if dim in long] == [
        dim for dim in order if dim in long
    ]


@given(layouts())
def test_what_was_permuted_into_its_memory_order_comes_back(layout):
    shape, order = layout
    tensor = in_order(shape, order, torch.randn)
    sent = tensor.permute(memory_order(tensor))
    assert sent.is_contiguous()
    back = reordered(sent, memory_order(tensor))
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back, tensor)


def test_without_an_order_dimensions_lie_as_they_come():
    assert in_order((2, 3), (), torch.zeros).is_contiguous()
    assert unusual_order(torch.zeros(2, 3)) == ()


@pytest.mark.parametrize(
    ("size", "stride"), [((2, 3), (0, 1)), ((3, 2, 1), (1, 2, 2)), ((2, 2), (1, 1))]
)
def test_overlapping_elements_have_the_order_of_their_dimensions(size, stride):
    tensor = torch.zeros(20).as_strided(size, stride)
    assert memory_order(tensor) == tuple(range(len(size)))


def test_the_stride_of_a_single_element_does_not_matter():
    tensor = torch.zeros(2, 3, 4).transpose(1, 2)
    orders = {
        memory_order(tensor.unsqueeze(1).as_strided((2, 1, 4, 3), (12, any_, 1, 4)))
        for any_ in (1, 5, 12, 100)
    }
    assert orders == {(0, 1, 3, 2)}
