"""What the values of options are read with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["groups", "pins", "usable"]


def usable(
    _context: click.Context, _parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse an unusable place before minutes are spent on a plan for it."""
    if path is None:
        return None
    parent = path.absolute().parent
    if not parent.is_dir():
        message = f"folder {parent} does not exist"
        raise click.BadParameter(message)
    if path.exists() and not path.is_file():
        message = f"{path} exists and is not a regular file"
        raise click.BadParameter(message)
    return path


def pins(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int] | None:
    """Read ``PATTERN=STAGE``."""
    found = {}
    for value in values:
        pattern, _, stage = value.rpartition("=")
        if not pattern or not stage.removeprefix("-").isdigit():
            message = f"{value!r} is not PATTERN=STAGE, like lm_head=-1"
            raise click.BadParameter(message)
        found[pattern] = int(stage)
    return found or None


def groups(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, ...], ...]:
    """Read groups of patterns with commas between."""
    return tuple(tuple(value.split(",")) for value in values)
