"""How a tensor's dimensions lie in memory: channels-last images, transposed views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["in_order", "memory_order", "reordered"]


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions from the outermost to the innermost in memory.

    Gaps do not matter (a part of another tensor): operations on the tensor give theirs
    the same order. Of a tensor whose elements overlap it is the dimensions' own order.
    """
    own = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return own
    sizes, strides = tensor.shape, tensor.stride()
    order = tuple(sorted(own, key=lambda dim: -strides[dim]))
    least = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] < least:
            return own  # overlaps
        least = max(strides[dim], 1) * sizes[dim]
    return order


def reordered(value: Tensor | int, order: tuple[int, ...]) -> Tensor | int:
    """Return a tensor whose dimensions came in the order of memory in their own."""
    places = sorted(range(len(order)), key=order.__getitem__)
    if not isinstance(value, Tensor) or places == list(range(len(order))):
        return value
    return value.permute(places)


def in_order(
    shape: Sequence[int], order: Sequence[int], make: Callable[[Sequence[int]], Tensor]
) -> Tensor:
    """Make a tensor whose dimensions lie in memory in another order than their own.

    Args:
        shape: Of the tensor.
        order: Its dimensions from the outermost to the innermost; empty: as they come.
        make: Returns a contiguous tensor of a shape.
    """
    if not order:
        return make(tuple(shape))
    places = sorted(range(len(order)), key=order.__getitem__)
    return make([shape[dim] for dim in order]).permute(places)
