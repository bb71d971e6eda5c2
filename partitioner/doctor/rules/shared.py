"""What several families of rules use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.doctor.finding import REMOVED, Edit, Symptom
from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["refused", "removal", "setting"]


def refused(where: str, check: Callable[[], None], *edits: Edit) -> Iterator[Symptom]:
    """Yield what a check of training time says, if it raises.

    Args:
        where: The entry.
        check: Raises ``OptionError`` where the entry is wrong.
        *edits: What mends it.
    """
    try:
        check()
    except OptionError as error:
        yield Symptom(where=where, why=error.message, change=error.hint, edits=edits)


def setting(path: str, value: Any) -> Edit:
    """Return the change that gives an entry, ``a.b``, a value."""
    return Edit(path=tuple(path.split(".")), value=value)


def removal(path: str) -> Edit:
    """Return the change that takes an entry, ``a.b``, out."""
    return Edit(path=tuple(path.split(".")), value=REMOVED)
