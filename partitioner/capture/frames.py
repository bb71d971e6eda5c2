"""Where the forward is: the running module call, and the line of the user's code."""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn

__all__ = ["Frame", "forward_source", "user_source"]

_OURS = str(Path(__file__).resolve().parent.parent)
_TORCH = str(Path(torch.__file__).resolve().parent)


class Frame:
    """One module call that is being run through.

    Args:
        path: Path of the module.
        call: How often it was called before.
        span: Number of its record.
    """

    def __init__(self, path: str, call: int, span: int | None) -> None:
        self.path, self.call, self.span = path, call, span
        self.operations = 0
        self.named: dict[str, int] = {}

    def next_id(self) -> str:
        """Return the id of the next operation of this call."""
        number = self.operations
        self.operations += 1
        return f"{self.path}@{self.call}:{number}"

    def draw_key(self, function: str) -> str:
        """Return a name for the next call of ``function``, whatever else runs."""
        number = self.named.get(function, 0)
        self.named[function] = number + 1
        return f"{self.path}@{self.call}:{function}#{number}"


def user_source() -> str:
    """Return ``file:line`` of the model's innermost frame outside torch.

    Frames beyond the recorder's own ``run`` are whoever called the compiler: where
    the model is all torch's (an ``nn.Sequential``), there is no line of the user's.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads source files
    while frame is not None:
        code = frame.f_code
        if code.co_name == "run" and code.co_filename.startswith(_OURS):
            return ""
        name = _short(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def forward_source(module: nn.Module) -> str:
    """Return ``file:line`` of a module's forward."""
    forward = inspect.getattr_static(type(module), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None) if forward else None
    if code is None:
        return ""
    return f"{_short(code.co_filename) or code.co_filename}:{code.co_firstlineno}"


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
