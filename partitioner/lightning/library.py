"""The Lightning that the user has imported: ``lightning.pytorch`` or the older name."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any

from partitioner.errors import OptionError

__all__ = ["LIBRARIES", "Library", "imported"]

LIBRARIES = ("lightning.pytorch", "pytorch_lightning")
"""Two packages with the same contents, whose classes are strangers to each other."""


class Library:
    """One of the two, as far as the strategy needs it.

    Args:
        name: Of its package.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def version(self) -> str:
        """The package's version."""
        return str(import_module(self.name).__version__)

    def part(self, path: str) -> Any:
        """Return what the package has under a dotted path.

        Args:
            path: A module below the package and a name in it: ``strategies.Strategy``.
        """
        module, _, name = path.rpartition(".")
        return getattr(import_module(f"{self.name}.{module}"), name)


def imported(given: Any = None) -> Library:
    """Return the library that a strategy is to be made for.

    Args:
        given: The package or its name; None: the one that is imported already.

    Raises:
        OptionError: None is, or both are, or ``given`` is none of the two.
    """
    names = [name for name in LIBRARIES if name in sys.modules]
    if given is not None:
        name = given if isinstance(given, str) else getattr(given, "__name__", "")
        # ``import lightning as L`` is the package around the one that is meant.
        names = ["lightning.pytorch" if name == "lightning" else name]
    if len(names) == 1 and names[0] in LIBRARIES:
        return _library(names[0])
    if given is not None:
        raise OptionError(
            f"library is {given!r}",
            hint=f"one of {' and '.join(LIBRARIES)} is possible",
        )
    if names:
        raise OptionError(
            f"{' and '.join(names)} are both imported, and a strategy fits one of them",
            hint="say whose Trainer gets it: PipelineStrategy(…, library=pl)",
        )
    raise OptionError(
        f"neither {' nor '.join(LIBRARIES)} is imported",
        hint="import the one whose Trainer gets the strategy (pip install "
        "'fx-partitioner[lightning]')",
    )


@cache
def _library(name: str) -> Library:
    return Library(name)
