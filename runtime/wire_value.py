"""What one value of a stage boundary looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from partitioner.errors import EmitError, RuntimeGuardError

__all__ = ["WireValue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireValue:
    """What one value of a boundary looks like.

    Args:
        name: Name for messages.
        kind: A tensor, or a Python integer (a size).
        dtype: The tensor's dtype; None for an integer.
        shape: The tensor's shape; None for a dimension known at run time only.
        differentiable: A gradient flows back through this value.
        source: ``file:line`` of the operation that makes it, for messages.
        drops_gradient: The value may require grad, but no output of the model depends
            on it that way: it is sent without.

    Raises:
        EmitError: The fields contradict each other.
    """

    name: str
    kind: Literal["tensor", "int"]
    dtype: torch.dtype | None
    shape: tuple[int | None, ...]
    differentiable: bool
    source: str = ""
    drops_gradient: bool = False

    def __post_init__(self) -> None:
        if (self.kind == "tensor") != (self.dtype is not None):
            raise EmitError(f"{self}: a tensor has a dtype, and only a tensor has one")
        if self.differentiable and not _can_have_gradient(self.dtype):
            raise EmitError(f"{self}: {self.dtype} has no gradient")

    def __str__(self) -> str:
        """Return the name and where the value is made."""
        return f"{self.name!r} ({self.source})" if self.source else repr(self.name)

    def check(self, value: Tensor | int) -> None:
        """Compare a value at run time with this description.

        Raises:
            RuntimeGuardError: Kind, dtype, rank, a fixed dimension or the need
                of a gradient differs.
        """
        found = self._difference(value)
        if found:
            raise RuntimeGuardError(
                f"value {self} at a stage boundary {found}",
                hint="partition again with example inputs like those you train on",
            )

    def _difference(self, value: Tensor | int) -> str:
        if self.kind == "int":
            return "" if type(value) is int else f"is {value!r}, not an int"
        if not isinstance(value, Tensor):
            return f"is a {type(value).__name__}, not a tensor"
        if value.dtype != self.dtype:
            return f"has dtype {value.dtype}; the plan has {self.dtype}"
        shape = tuple(value.shape)
        if len(shape) != len(self.shape) or any(
            want not in {None, have}
            for want, have in zip(self.shape, shape, strict=True)
        ):
            return f"has shape {shape}; the plan has {self.shape}"
        if value.requires_grad and not (self.differentiable or self.drops_gradient):
            return "requires grad; the plan sends it without a gradient"
        return ""


def _can_have_gradient(dtype: torch.dtype | None) -> bool:
    return dtype is not None and (dtype.is_floating_point or dtype.is_complex)
