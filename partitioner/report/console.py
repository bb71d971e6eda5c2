"""Rich renderable → plain text of a given width, the same on every terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["DEFAULT_WIDTH", "to_text"]

DEFAULT_WIDTH = 80
"""Columns that every report fits."""


def to_text(renderable: RenderableType, *, width: int = DEFAULT_WIDTH) -> str:
    """Render without colour or control codes.

    Args:
        renderable: What to render.
        width: Columns to fit.

    Returns:
        Lines without trailing blanks, ending in one newline.
    """
    buffer = io.StringIO()
    # A file that is no terminal, and no environment: FORCE_COLOR must not leak in.
    console = Console(file=buffer, width=width, color_system=None, _environ={})
    console.print(renderable)
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines).rstrip("\n") + "\n"
