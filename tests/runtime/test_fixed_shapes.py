"""Shapes that DeepSpeed exchanges once may not change unannounced."""

from __future__ import annotations

import pytest
import torch

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.fixed_shapes import FixedShapes


def test_another_shape_is_refused_and_both_are_named():
    shapes = FixedShapes(("ids", "mask"))
    shapes.check((torch.zeros(2, 5), torch.zeros(2, 1)))
    shapes.check((torch.ones(2, 5), torch.ones(2, 1)))
    with pytest.raises(
        RuntimeGuardError, match=r"^the input 'ids' has shape \(2, 7\);.*\(2, 5\): "
    ) as caught:
        shapes.check((torch.zeros(2, 7), torch.zeros(2, 1)))
    assert "mask" not in caught.value.message
    assert "dynamic_shape=True" in caught.value.hint


def test_after_a_reset_the_next_shape_is_the_fixed_one():
    shapes = FixedShapes()
    shapes.check(torch.zeros(2, 5))
    shapes.reset()
    shapes.check(torch.zeros(3, 5))
    with pytest.raises(RuntimeGuardError, match=r"input 0 has shape \(2, 5\)"):
        shapes.check(torch.zeros(2, 5))
