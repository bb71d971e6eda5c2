"""Where in the user's model an exception was raised on this rank."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import deepspeed
import torch
from torch import nn

from partitioner.runtime.generated_code import is_generated, origin
from partitioner.runtime.loss import LossHead
from partitioner.runtime.segment import SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

__all__ = ["place_of"]

_NOT_THE_USERS = tuple(
    f"{Path(package).parent}{os.sep}"
    for package in (torch.__file__, deepspeed.__file__, str(Path(__file__).parent))
)
_PYTHON, _PACKAGES = (sysconfig.get_path(name) for name in ("stdlib", "purelib"))


def place_of(error: BaseException, stage: nn.Module) -> str:
    """Return the module and the line that an exception came from.

    Args:
        error: Raised while a stage ran, in forward, backward or the loss.
        stage: Holds the segments of this rank.

    Returns:
        ``in 'blocks.1.fc' (Linear), model.py:12``; empty if it is not the user's code.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    path, source = _operation(frames)
    module = _module(frames, stage)
    if module is None and source:
        module = repr(path) if path else "the root"
    if module is None and any(isinstance(_owner(f), LossHead) for f, _ in frames):
        module = "the loss"
    parts = [f"in {module}" if module else "", _line(frames) or source]
    return ", ".join(part for part in parts if part)


def _owner(frame: FrameType) -> object:
    return frame.f_locals.get("self")


def _operation(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, str]:
    """Return module path and line of the recorded operation that was being run."""
    segment: SegmentProgram | None = None
    found = "", ""
    for frame, line in frames:
        owner = _owner(frame)
        if isinstance(owner, SegmentProgram):
            segment = owner
        filename = frame.f_code.co_filename
        if segment is not None and is_generated(filename):
            found = origin(segment.graph, linecache.getline(filename, line))
    return found


def _module(frames: Sequence[tuple[FrameType, int]], stage: nn.Module) -> str | None:
    """Return the innermost module of the model that was being called."""
    paths = {
        id(module): path
        for segment in stage.modules()
        if isinstance(segment, SegmentProgram)
        for path, module in segment.named_modules()
        if path
    }
    for frame, _ in reversed(frames):
        owner = _owner(frame)
        if isinstance(owner, nn.Module) and id(owner) in paths:
            return f"{paths[id(owner)]!r} ({type(owner).__name__})"
    return None


def _line(frames: Sequence[tuple[FrameType, int]]) -> str:
    """Return the innermost ``file:line`` of the user's own code."""
    for frame, line in reversed(frames):
        filename = frame.f_code.co_filename
        if _is_users(filename) and _inside(frames, frame):
            return f"{filename}:{line}"
    return ""


def _inside(frames: Sequence[tuple[FrameType, int]], frame: FrameType) -> bool:
    """Whether a frame was called by a segment or the loss, not around the step."""
    for outer, _ in frames:
        if outer is frame:
            return False
        if isinstance(_owner(outer), SegmentProgram | LossHead):
            return True
    return False


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    library = filename.startswith(_PYTHON) and not filename.startswith(_PACKAGES)
    return not library and not filename.startswith(_NOT_THE_USERS)
