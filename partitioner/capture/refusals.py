"""What the recorder raises where it cannot record through a module."""

from __future__ import annotations

from typing import Any

from partitioner.capture.functions import opaque_argument
from partitioner.capture.records import DeviceRef, Ref
from partitioner.capture.tree import map_tree

__all__ = ["LeafNeeded", "first_line", "opaque_encoded"]


class LeafNeeded(BaseException):
    """The module at ``path`` cannot be recorded through; it must become a leaf.

    Not an ``Exception``, so that a model's own ``except`` does not swallow it.
    """

    def __init__(self, path: str, reason: str, source: str, hint: str = "") -> None:
        super().__init__(f"{path or 'the root'}: {reason} ({source})")
        self.path = path
        self.reason = reason
        self.source = source
        self.hint = hint


def opaque_encoded(tree: Any) -> str:
    """Say what in an encoded argument tree generated code could not name; or ""."""

    def leaf(value: Any) -> Any:
        return None if isinstance(value, Ref | DeviceRef) else value

    return opaque_argument(map_tree(leaf, tree))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
