"""torch's global state besides gradients and autocast, which no recorded node holds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ambient", "ambient", "function_modes", "kept_ambient"]


class Ambient(NamedTuple):
    """State that changes what operations compute; each field is named in messages."""

    default_dtype: torch.dtype
    saved_tensors_hooks: int
    """Identity of the innermost hooks; 0 without."""
    dispatch_modes: int
    deterministic_algorithms: tuple[bool, bool]
    matmul_precision: str
    attention_backends: tuple[bool, ...]

    def difference(self, other: Ambient) -> str:
        """Return the name of the first thing that is not the same, in words; or ""."""
        if self == other:  # at nearly every operation
            return ""
        for name in self._fields:
            before, now = getattr(self, name), getattr(other, name)
            # torch itself hides dispatch modes for a while (torch.from_numpy).
            hidden = name == "dispatch_modes" and now < before
            if before != now and not hidden:
                return name.replace("_", " ")
        return ""


def ambient() -> Ambient:
    """Return torch's global state as it is now."""
    return Ambient(
        default_dtype=torch.get_default_dtype(),
        saved_tensors_hooks=_innermost_hooks(),
        dispatch_modes=len(_get_current_dispatch_mode_stack()),
        deterministic_algorithms=_determinism(),
        matmul_precision=torch.get_float32_matmul_precision(),
        attention_backends=_attention_backends(),
    )


def function_modes() -> int:
    """Return how many torch function modes are on (a default device is one)."""
    return len(_get_current_function_mode_stack())


def _innermost_hooks() -> int:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001 - torch has no public name
    return id(hooks[0]) if hooks else 0


def _determinism() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _attention_backends() -> tuple[bool, ...]:
    cuda: Any = torch.backends.cuda
    return (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
    )


@contextmanager
def kept_ambient() -> Iterator[None]:
    """Put back what a forward that is broken off has set and not reset."""
    dtype = torch.get_default_dtype()
    deterministic, warn_only = _determinism()
    precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(precision)
