"""Small functions that generated segment code calls besides torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["by_mode", "in_region"]


def by_mode(training: bool, train_value: Any, eval_value: Any) -> Any:  # noqa: FBT001 - generated code passes it by position
    """Return the value for the mode the segment is in."""
    return train_value if training else eval_value


def in_region(
    grad_enabled: bool,  # noqa: FBT001 - generated code passes it by position
    autocast: Sequence[tuple[str, torch.dtype]],
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call ``function`` under the modes the original forward had entered there.

    Args:
        grad_enabled: False inside the forward's own ``no_grad`` region.
        autocast: (device type, dtype) of every autocast that was on.
        function: What to call.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.
    """
    # Plain with-statements: torch.compile does not take an ExitStack of these.
    if not grad_enabled:
        with torch.no_grad():
            return in_region(True, autocast, function, *args, **kwargs)
    if autocast:
        (device_type, dtype), *inner = autocast
        with torch.autocast(device_type, dtype=dtype):
            return in_region(True, inner, function, *args, **kwargs)
    return function(*args, **kwargs)
