"""Floating dtypes by the names that users give them."""

from __future__ import annotations

import torch

from partitioner.errors import OptionError

__all__ = ["as_dtype"]


def as_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Return a floating dtype, or None for None.

    Args:
        dtype: A dtype, its name, or a short one like ``"bf16"``.

    Raises:
        OptionError: It is not known, or not floating.
    """
    if dtype is None or isinstance(dtype, torch.dtype):
        found = dtype
    else:
        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        found = getattr(torch, names.get(dtype, dtype), None)
        if not isinstance(found, torch.dtype):
            hint = "choose from float32, bfloat16, float16"
            raise OptionError(f"dtype {dtype!r} is not known", hint=hint)
    if found is not None and not found.is_floating_point:
        hint = "choose from float32, bfloat16, float16"
        raise OptionError(f"dtype {found} is no floating type", hint=hint)
    return found
