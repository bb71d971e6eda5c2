"""Pack the values of one stage boundary into the tensors that DeepSpeed may carry.

DeepSpeed shares one pool of receive buffers between activations and gradients,
by position and whatever the dtype; calls ``backward`` once per floating tensor
of a boundary; and insists on a gradient for each of them. So all differentiable
values travel as the *bits* of one float32 carrier in slot 0, and all the rest as
at most one byte tensor in slot 1. Each tensor keeps the order of its dimensions in
memory (channels-last images; dropout draws in memory order), which is known at run
time only: what fake tensors say of it differs from what kernels do. Nothing between
:meth:`WireSpec.pack` and :meth:`WireSpec.unpack` does arithmetic on a carrier or on its
gradient.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partitioner.errors import EmitError, RuntimeGuardError
from partitioner.runtime.bits import (
    byte_size,
    bytes_of,
    carrier_bytes,
    from_bytes,
    pack_bits,
    unpack_bits,
)
from partitioner.runtime.header import SentHeader, read_now
from partitioner.runtime.memory_order import memory_order, reordered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.runtime.wire_value import WireValue

__all__ = ["WireSpec"]

_HEADER_ITEM_BYTES = 8  # int64


@dataclass(frozen=True)
class WireSpec:
    """The packed format of one stage boundary.

    The carrier (float32, one-dimensional, at least one element) holds the bytes
    of each differentiable value in order, each padded to four bytes. The byte
    tensor (uint8) starts with a header of int64 numbers – the dimensions known
    at run time only, then each tensor's order of dimensions in memory if it has more
    than one, then the integers – followed by the bytes of the non-differentiable
    tensors; it is left out where it would be empty.

    Args:
        values: The boundary's values in order.
    """

    values: tuple[WireValue, ...]

    def pack(
        self, token: Tensor | None, values: Sequence[Tensor | int]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Turn the values into the carrier, or the carrier and the byte tensor.

        Args:
            token: The token that arrived with the values of the last boundary;
                None makes a fresh one, so that the carrier requires grad.
            values: One value for each entry of ``self.values``.

        Returns:
            The carrier alone if nothing else crosses, else ``(carrier, bytes)``.

        Raises:
            RuntimeGuardError: A value differs from its :class:`WireValue`.
        """
        self._check(values)
        tensors = [value for value in values if isinstance(value, Tensor)]
        if token is None:
            device = tensors[0].device if tensors else torch.device("cpu")
            token = torch.zeros((), device=device, requires_grad=True)
        laid_out = [
            value.permute(memory_order(value)) if isinstance(value, Tensor) else value
            for value in values
        ]
        differentiable = [_tensor(laid_out[index]) for index in self._differentiable]
        carrier = pack_bits(token, differentiable)
        if not self._has_bytes:
            return carrier
        header = self._header(values)
        return carrier, self._pack_bytes(header, laid_out, carrier.device)

    def unpack(
        self,
        received: Tensor | tuple[Tensor, ...],
        read: Callable[[Tensor], list[int]] = read_now,
    ) -> tuple[Any, ...]:
        """Turn what DeepSpeed received into ``(token, *values)``.

        The token is a float32 zero which must be passed to the next
        :meth:`pack` (or added, times zero, to the loss): through it the carrier
        gets a gradient even where no value does.

        Args:
            received: What :meth:`pack` returned on the stage before.
            read: Reads the header's numbers from its bytes.

        Returns:
            The token and one value for each entry of ``self.values``; each tensor
            owns its memory, so that it may be written in place.

        Raises:
            RuntimeGuardError: The tensors are not this boundary's.
        """
        carrier, rest = self._split(received)
        length_bytes = self._header_length * _HEADER_ITEM_BYTES
        header = read(rest[:length_bytes]) if rest is not None and length_bytes else []
        orders = self._orders(header)
        shapes = self._shapes(header, orders)
        differentiable = tuple(
            (shapes[index], _dtype(self.values[index]))
            for index in self._differentiable
        )
        self._check_size("carrier", carrier, carrier_bytes(differentiable))
        token, *unpacked = unpack_bits(carrier, differentiable)
        values: list[Any] = [None] * len(self.values)
        for index, value in zip(self._differentiable, unpacked, strict=True):
            values[index] = value
        if rest is not None:
            self._unpack_bytes(rest, header, shapes, values)
        else:  # only tensors without elements can be left out
            for index in self._opaque:
                values[index] = carrier.new_empty(
                    shapes[index], dtype=_dtype(self.values[index])
                )
        pairs = zip(values, orders, strict=True)
        return (token, *(reordered(value, order) for value, order in pairs))

    # The values by the way they travel: positions in ``self.values``.

    @cached_property
    def _differentiable(self) -> tuple[int, ...]:
        return tuple(i for i, value in enumerate(self.values) if value.differentiable)

    @cached_property
    def _opaque(self) -> tuple[int, ...]:
        return tuple(
            i
            for i, value in enumerate(self.values)
            if value.kind == "tensor" and not value.differentiable
        )

    @cached_property
    def _integers(self) -> tuple[int, ...]:
        return tuple(i for i, value in enumerate(self.values) if value.kind == "int")

    @cached_property
    def _open_dimensions(self) -> int:
        return sum(value.shape.count(None) for value in self.values)

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        """How many numbers of the header say how each value lies in memory."""
        ranks = [len(value.shape) for value in self.values]
        return tuple(rank if rank > 1 else 0 for rank in ranks)

    @property
    def _header_length(self) -> int:
        return self._open_dimensions + sum(self._ranks) + len(self._integers)

    @cached_property
    def _sent(self) -> SentHeader:
        return SentHeader()

    @cached_property
    def _has_bytes(self) -> bool:
        return self._header_length > 0 or any(
            prod(size or 0 for size in self.values[index].shape)
            for index in self._opaque
        )

    def _check(self, values: Sequence[Tensor | int]) -> None:
        if len(values) != len(self.values):
            raise RuntimeGuardError(
                f"a stage boundary got {len(values)} values; "
                f"the plan has {len(self.values)}"
            )
        for spec, value in zip(self.values, values, strict=True):
            spec.check(value)

    def _header(self, values: Sequence[Tensor | int]) -> list[int]:
        """Return the numbers that say how to read the rest."""
        numbers = list(self._run_time_sizes(values))
        for value, rank in zip(values, self._ranks, strict=True):
            if rank:
                numbers += memory_order(_tensor(value))
        return numbers + [int(values[index]) for index in self._integers]

    def _pack_bytes(
        self, numbers: list[int], laid_out: Sequence[Any], device: torch.device
    ) -> Tensor:
        pieces = [bytes_of(laid_out[index]) for index in self._opaque]
        if numbers:
            pieces.insert(0, self._sent.packed(numbers, device))
        return torch.cat(pieces)

    def _run_time_sizes(self, values: Sequence[Tensor | int]) -> Iterator[int]:
        for spec, value in zip(self.values, values, strict=True):
            if isinstance(value, Tensor):
                for want, have in zip(spec.shape, value.shape, strict=True):
                    if want is None:
                        yield have

    def _split(
        self, received: Tensor | tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None]:
        tensors = (received,) if isinstance(received, Tensor) else tuple(received)
        want = [torch.float32, torch.uint8] if self._has_bytes else [torch.float32]
        if [tensor.dtype for tensor in tensors] != want:
            raise RuntimeGuardError(
                f"a stage received tensors of {[t.dtype for t in tensors]}; "
                f"the plan has {want}",
                hint="all ranks must run the same plan",
            )
        return tensors[0], tensors[1] if self._has_bytes else None

    def _orders(self, header: list[int]) -> list[tuple[int, ...]]:
        """Return how each value's dimensions lie in memory."""
        numbers = iter(header[self._open_dimensions :])
        orders = []
        for value, rank in zip(self.values, self._ranks, strict=True):
            own = tuple(range(len(value.shape)))
            orders.append(tuple(itertools.islice(numbers, rank)) or own)
        return orders

    def _shapes(
        self, header: list[int], orders: Sequence[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """Return the shape of each value, in the order of memory."""
        sizes = iter(header)
        shapes = []
        for value, order in zip(self.values, orders, strict=True):
            shape = [next(sizes) if size is None else size for size in value.shape]
            shapes.append(tuple(shape[dim] for dim in order))
        return shapes

    def _unpack_bytes(
        self,
        rest: Tensor,
        header: list[int],
        shapes: list[tuple[int, ...]],
        values: list[Any],
    ) -> None:
        """Fill ``values`` with what came in the byte tensor."""
        numbers = header[len(header) - len(self._integers) :]
        for index, number in zip(self._integers, numbers, strict=True):
            values[index] = number
        offset = len(header) * _HEADER_ITEM_BYTES
        needed = sum(
            byte_size(shapes[index], _dtype(self.values[index]))
            for index in self._opaque
        )
        self._check_size("byte tensor", rest, offset + needed)
        for index in self._opaque:
            dtype = _dtype(self.values[index])
            values[index] = from_bytes(rest, offset, shapes[index], dtype)
            offset += byte_size(shapes[index], dtype)

    @staticmethod
    def _check_size(what: str, tensor: Tensor, needed_bytes: int) -> None:
        found_bytes = tensor.numel() * tensor.element_size()
        if found_bytes != needed_bytes:
            raise RuntimeGuardError(
                f"a stage received a {what} of {found_bytes} bytes; "
                f"the plan's values need {needed_bytes}",
                hint="micro-batches of different shapes need dynamic_shape=True",
            )


def _dtype(value: WireValue) -> torch.dtype:
    if value.dtype is None:
        raise EmitError(f"value {value} is no tensor")
    return value.dtype


def _tensor(value: Tensor | int) -> Tensor:
    if not isinstance(value, Tensor):  # check() has been before
        raise RuntimeGuardError(f"a stage boundary got {value!r}, not a tensor")
    return value
