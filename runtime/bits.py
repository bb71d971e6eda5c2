"""Cast tensors to the bits of one float32 carrier and back, gradients as well.

Each side is one autograd function, so a boundary costs one backward, and no
arithmetic touches a carrier: patterns that happen to be NaN arrive unchanged.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Layout",
    "byte_size",
    "bytes_of",
    "carrier_bytes",
    "from_bytes",
    "pack_bits",
    "unpack_bits",
]

Layout = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape and dtype of each value in a carrier, in order."""

_CARRIER_ITEM_BYTES = 4  # float32


def pack_bits(token: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return the carrier of differentiable tensors.

    Args:
        token: A float32 scalar; gets a gradient of zero in backward.
        tensors: Tensors of any floating or complex dtype and any shape.

    Returns:
        A float32 tensor of one dimension: the bytes of each tensor in order, each
        padded to four bytes; at least one element. It requires grad if the token
        or any of the tensors does.
    """
    carrier: Tensor = _PackBits.apply(token, *tensors)  # type: ignore[no-untyped-call]
    return carrier


def unpack_bits(carrier: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """Return the token and the tensors that a carrier holds.

    Args:
        carrier: What :func:`pack_bits` returned.
        layout: Shape and dtype of each tensor.

    Returns:
        A float32 scalar zero, then the tensors; each owns its memory. A gradient
        for any of them gives the carrier one, with zeros where there is none.
    """
    unpacked: tuple[Tensor, ...] = _UnpackBits.apply(carrier, layout)  # type: ignore[no-untyped-call]
    return unpacked


class _PackBits(torch.autograd.Function):
    """Differentiable values → the bits of one float32 carrier."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, *tensors: Tensor) -> Tensor:
        ctx.token = (token.dtype, token.device)
        ctx.layout = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        return _to_carrier([bytes_of(tensor) for tensor in tensors], token.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # DeepSpeed receives every gradient into the same buffer, and autograd
        # may keep what is returned here as a parameter's .grad: copy, never view.
        received = bytes_of(gradient)
        dtype, device = ctx.token
        gradients: list[Tensor | None] = [torch.zeros((), dtype=dtype, device=device)]
        offset = 0
        for (shape, dtype), needed in zip(
            ctx.layout, ctx.needs_input_grad[1:], strict=True
        ):
            gradients.append(
                from_bytes(received, offset, shape, dtype) if needed else None
            )
            offset += _padded(byte_size(shape, dtype))
        return tuple(gradients)


class _UnpackBits(torch.autograd.Function):
    """The bits of a carrier → a zero token and the differentiable values."""

    @staticmethod
    def forward(
        ctx: Any,
        carrier: Tensor,
        layout: Layout,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.layout, ctx.device = layout, carrier.device
        received = bytes_of(carrier)
        values = []
        offset = 0
        for shape, dtype in layout:
            values.append(from_bytes(received, offset, shape, dtype))
            offset += _padded(byte_size(shape, dtype))
        return (carrier.new_zeros(()), *values)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, _token: Tensor | None, *gradients: Tensor | None
    ) -> tuple[Tensor, None]:
        pieces = [
            torch.zeros(byte_size(*spec), dtype=torch.uint8, device=ctx.device)
            if gradient is None
            else bytes_of(gradient)
            for gradient, spec in zip(gradients, ctx.layout, strict=True)
        ]
        return _to_carrier(pieces, ctx.device), None


def byte_size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of a tensor of this shape and dtype."""
    return prod(shape) * dtype.itemsize


def _padded(size_bytes: int) -> int:
    """Round a number of bytes up to whole elements of a carrier."""
    return -(-size_bytes // _CARRIER_ITEM_BYTES) * _CARRIER_ITEM_BYTES


def carrier_bytes(layout: Layout) -> int:
    """Return the bytes of a carrier; it has at least one element."""
    total_bytes = sum(_padded(byte_size(shape, dtype)) for shape, dtype in layout)
    return max(total_bytes, _CARRIER_ITEM_BYTES)


def bytes_of(value: Tensor) -> Tensor:
    """Return a tensor's elements as a flat uint8 tensor (a view where it can be)."""
    tensor = value.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8)


def from_bytes(
    source: Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """Copy a tensor out of a byte tensor; any offset, however aligned, will do."""
    result = torch.empty(shape, dtype=dtype, device=source.device)
    flat = result.reshape(-1).view(torch.uint8)
    flat.copy_(source[offset : offset + flat.numel()])
    return result


def _to_carrier(pieces: list[Tensor], device: torch.device) -> Tensor:
    """Join flat uint8 tensors, each padded to four bytes, to one float32 tensor."""
    joined = []
    for piece in pieces:
        missing = _padded(piece.numel()) - piece.numel()
        joined += [piece, piece.new_zeros(missing)] if missing else [piece]
    if not sum(piece.numel() for piece in joined):
        return torch.zeros(1, device=device)
    return torch.cat(joined).view(torch.float32)
