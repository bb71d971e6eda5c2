"""Entries that need a class of some library: left out, by name, where it is missing."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache

from tests.zoo.entry import Entry, Missing

__all__ = ["needs"]


def needs(library: str, name: str, entry: Entry) -> Entry | Missing:
    """Return ``entry``, or what is missing for it.

    Args:
        library: Name of a package.
        name: Name of a class of the package that the entry's model needs.
        entry: The entry.
    """
    found = _names(library)
    if found is None:
        return Missing(name=entry.name, reason=f"{library} is not installed")
    if name not in found:
        reason = f"the installed {library} has no {name}"
        return Missing(name=entry.name, reason=reason)
    return entry


@cache
def _names(library: str) -> frozenset[str] | None:
    """List a package's names without importing the modules behind them."""
    if importlib.util.find_spec(library) is None:
        return None
    return frozenset(dir(importlib.import_module(library)))
