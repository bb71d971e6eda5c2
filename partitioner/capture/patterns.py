"""Names, globs and classes → paths of modules."""

from __future__ import annotations

import difflib
import fnmatch
from typing import TYPE_CHECKING

from torch import nn

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Pattern", "matching_paths"]

Pattern = str | type[nn.Module]
"""A module's path, a glob over paths (``"model.layers.*"``), or a module class."""


def matching_paths(
    model: nn.Module, patterns: Iterable[Pattern], argument: str
) -> list[str]:
    """Return the paths of the modules that any pattern names, in the model's order.

    Args:
        model: Whose modules are meant; the root itself is never matched.
        patterns: Paths, globs or classes.
        argument: Name of the argument they came from, for messages.

    Raises:
        OptionError: A pattern matches nothing (says what is similar).
    """
    modules = {path: module for path, module in model.named_modules() if path}
    found: set[str] = set()
    for pattern in patterns:
        matched = [
            path for path, module in modules.items() if _is(path, module, pattern)
        ]
        if not matched:
            raise _nothing(pattern, modules, argument)
        found.update(matched)
    return [path for path in modules if path in found]


def _is(path: str, module: nn.Module, pattern: Pattern) -> bool:
    if isinstance(pattern, str):
        return fnmatch.fnmatchcase(path, pattern)
    return isinstance(module, pattern)


def _nothing(
    pattern: Pattern, modules: dict[str, nn.Module], argument: str
) -> OptionError:
    kinds = sorted({type(module).__name__ for module in modules.values()})
    if isinstance(pattern, str):
        close = difflib.get_close_matches(pattern, modules, n=3)
        hint = f"similar: {', '.join(close)}" if close else "give a module's path"
        return OptionError(f"{argument}: no module is named {pattern!r}", hint=hint)
    name = getattr(pattern, "__name__", repr(pattern))
    hint = f"the model has {', '.join(kinds[:12])}"
    return OptionError(f"{argument}: no module is a {name}", hint=hint)
