"""A tensor made in an order is one whose memory has that order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from partitioner.runtime.memory_order import in_order, memory_order, reordered


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    shape = draw(st.lists(st.integers(2, 4), min_size=1, max_size=5))
    return shape, draw(st.permutations(range(len(shape))))


@given(layouts())
def test_what_is_made_in_an_order_has_it(layout):
    shape, order = layout
    made = in_order(shape, order, torch.zeros)
    assert list(made.shape) == shape
    assert list(memory_order(made)) == order


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
    overlapping = torch.zeros(1, 3).expand(2, 3)
    assert memory_order(overlapping) == (0, 1)
