"""Checks of values that a model makes for itself: kept, as operations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.frames import user_source
from partitioner.capture.values import is_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CHECK", "recorded_checks"]

CHECK = "_assert_async"
"""Name of the operation that a check becomes: it raises, and returns nothing."""


@contextmanager
def recorded_checks(path: Callable[[], str]) -> Iterator[None]:
    """Let ``torch._check_tensor_all`` take tensors without values.

    Python would read the value only to raise: no result depends on it. The operation
    in its place raises where the tensor is, and does not wait for the device.

    Args:
        path: Returns the path of the module that is running.
    """
    original: Callable[..., None] = torch._check_tensor_all_with  # noqa: SLF001 - torch's other check calls this one

    def check(error: type[Exception], condition: Any, message: Any = None) -> None:
        if not is_fake(condition):
            original(error, condition, message)
            return
        where = f"{path() or 'the root'} ({user_source()})"
        text = f"a check that the model makes of its own values failed in {where}"
        torch._assert_async(condition.all(), text)  # noqa: SLF001 - torch has no public name

    _set(check)
    try:
        yield
    finally:
        _set(original)


def _set(function: Callable[..., None]) -> None:
    torch._check_tensor_all_with = function  # noqa: SLF001 - put back above
