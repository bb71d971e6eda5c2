"""Module names, shortened: runs of numbered neighbours become one name with a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["compress_names", "omit_repeats"]


@dataclass(frozen=True, slots=True)
class _Run:
    """Names alike but for one number, which counts up by one from name to name."""

    parts: tuple[str, ...]
    position: int = -1
    """Index of the number in ``parts``; -1 while the run has one name only."""
    last: int = -1

    def extended(self, name: str) -> _Run | None:
        """Return the run with ``name`` added, or None if it does not continue it."""
        parts = tuple(name.split("."))
        if len(parts) != len(self.parts):
            return None
        pairs = enumerate(zip(self.parts, parts, strict=True))
        differ = [position for position, (ours, theirs) in pairs if ours != theirs]
        if len(differ) != 1 or self.position not in (-1, differ[0]):
            return None
        position = differ[0]
        first, new = self.parts[position], parts[position]
        if not (first.isdecimal() and new.isdecimal()):
            return None
        last = int(first) if self.position == -1 else self.last
        return _Run(self.parts, position, int(new)) if int(new) == last + 1 else None

    def __str__(self) -> str:
        if self.position == -1:
            return ".".join(self.parts)
        number = f"{self.parts[self.position]}…{self.last}"
        before, after = self.parts[: self.position], self.parts[self.position + 1 :]
        return ".".join((*before, number, *after))


def compress_names(names: Iterable[str]) -> list[str]:
    """Join each run of consecutively numbered names into one name with a range.

    Order is kept, and only neighbours are joined, so the text reads in the order in
    which the modules run.

    Args:
        names: Dotted module names, in order.

    Returns:
        Names and ranges, never longer than ``names``.

    Example:
        >>> compress_names(["wte", "h.0", "h.1", "h.2", "ln_f"])
        ['wte', 'h.0…2', 'ln_f']
    """
    return [str(run) for run in _runs(names)]


def omit_repeats(names: Iterable[str]) -> list[str]:
    """Replace what a name shares with the one above it by an ellipsis.

    Args:
        names: Dotted module names, in order.

    Returns:
        The same number of names; the first is whole.

    Example:
        >>> omit_repeats(["h.3.attn.c_attn", "h.3.attn.c_proj", "h.3.mlp", "ln_f"])
        ['h.3.attn.c_attn', '….c_proj', '….mlp', 'ln_f']
    """
    shown: list[str] = []
    above: list[str] = []
    for name in names:
        parts = name.split(".")
        shared = 0
        while (
            shared < min(len(parts), len(above)) - 1 and parts[shared] == above[shared]
        ):
            shared += 1
        shown.append(".".join(["…", *parts[shared:]]) if shared > 1 else name)
        above = parts
    return shown


def _runs(names: Iterable[str]) -> Iterator[_Run]:
    run: _Run | None = None
    for name in names:
        extended = run.extended(name) if run else None
        if run and not extended:
            yield run
        run = extended or _Run(tuple(name.split(".")))
    if run:
        yield run
