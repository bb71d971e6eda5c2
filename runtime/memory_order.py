"""How a tensor's dimensions lie in memory: channels-last images, transposed views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["in_order", "memory_order", "reordered", "unusual_order"]


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the dimensions from the outermost to the innermost in memory.

    Gaps do not matter (a part of another tensor): operations on the tensor give theirs
    the same order. Of a tensor whose elements overlap it is the dimensions' own order.
    A dimension of size 1 has a stride that means nothing: it stays where it is.
    """
    own = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return own
    sizes, strides = tensor.shape, tensor.stride()
    long = [dim for dim in own if sizes[dim] != 1]
    moved = sorted(long, key=lambda dim: -strides[dim])
    least = 1
    for dim in reversed(moved):
        if strides[dim] < least:
            return own  # overlaps
        least = strides[dim] * sizes[dim]
    places = dict(zip(long, moved, strict=True))
    return tuple(places.get(dim, dim) for dim in own)


def unusual_order(tensor: Tensor) -> tuple[int, ...]:
    """Return the same, but empty where dimensions lie in memory as they come."""
    found = memory_order(tensor)
    return () if found == tuple(range(tensor.dim())) else found


def reordered(value: Tensor | int, order: tuple[int, ...]) -> Tensor | int:
    """Return a tensor whose dimensions came in the order of memory in their own."""
    places = _places(order)
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
    return make([shape[dim] for dim in order]).permute(_places(order))


def _places(order: Sequence[int]) -> list[int]:
    """Return for each dimension where it stands in an order of all."""
    return sorted(range(len(order)), key=order.__getitem__)
