"""The forward's arguments as they were recorded, and checks of a batch's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partitioner.errors import RuntimeGuardError

__all__ = [
    "MISSING",
    "InputConstant",
    "InputLeaf",
    "check_tensor",
    "descend",
    "describe",
    "entries_of",
    "equals",
    "is_label",
]

MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLeaf:
    """One tensor among the forward's arguments.

    Args:
        name: Name for messages, such as "encoder.mask".
        parameter: The forward's parameter that holds it.
        path: Keys and indices inside that argument; empty if it is the tensor.
        dtype: Its dtype in the recording (after casting floating inputs).
        shape: Its shape; None for a dimension that may vary.
    """

    name: str
    parameter: str
    path: tuple[str | int, ...] = ()
    dtype: torch.dtype
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputConstant:
    """One argument that is no tensor; its value is built into the pipeline.

    Args:
        parameter: The forward's parameter.
        path: Keys and indices inside that argument.
        value: What it was in the recording.
    """

    parameter: str
    path: tuple[str | int, ...] = ()
    value: object


def check_tensor(leaf: InputLeaf, value: Tensor) -> None:
    """Check an input's dtype and shape.

    Raises:
        RuntimeGuardError: They are not those of the recording.
    """
    if value.dtype != leaf.dtype:
        raise RuntimeGuardError(
            f"the input {leaf.name!r} has dtype {value.dtype}; "
            f"the plan has {leaf.dtype}"
        )
    shape = tuple(value.shape)
    if len(shape) != len(leaf.shape) or any(
        want not in {None, have} for want, have in zip(leaf.shape, shape, strict=True)
    ):
        raise RuntimeGuardError(
            f"the input {leaf.name!r} has shape {shape}; the plan has {leaf.shape}",
            hint="partition again with example inputs of this shape",
        )


def descend(arguments: Mapping[str, Any], entry: InputLeaf | InputConstant) -> Any:
    """Return what a batch has for an argument; ``MISSING`` if it has nothing."""
    value = arguments.get(entry.parameter, MISSING)
    try:
        for key in entry.path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return MISSING
    return value


def entries_of(value: Any) -> Sequence[Any] | None:
    """Return a tuple or a list as it is; None for anything else."""
    return value if isinstance(value, (tuple, list)) else None


def equals(left: Any, right: Any) -> bool:
    """Whether two arguments that are no tensors are the same."""
    return not isinstance(left, Tensor) and type(left) is type(right) and left == right


def describe(value: Any) -> str:
    """Say what a value is, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}"
    entries = entries_of(value)
    if entries is not None:
        return f"a {type(value).__name__} of {len(entries)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(str, value))}"
    return repr(value)


def is_label(name: Any) -> bool:
    """Whether an entry of a batch is for the loss, by the names that libraries use."""
    text = str(name)
    return (
        "label" in text
        or "target" in text
        or text in {"start_positions", "end_positions"}
    )
