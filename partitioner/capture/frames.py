"""Find the line of the user's code that is running."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

__all__ = ["user_source"]

_OURS = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)


def user_source() -> str:
    """Return ``file:line`` of the innermost frame outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _short(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=4096)
def _short(filename: str) -> str:
    """Return the path below its import root; "" for torch, this package, builtins."""
    if filename.startswith((_OURS, _TORCH, "<")):
        return ""
    path = Path(filename)
    roots = sorted((r for r in sys.path if r), key=len, reverse=True)
    for root in roots:
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name
