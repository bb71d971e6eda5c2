"""An error of somebody's code → one line that names where it was raised."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["described", "first_line"]


def described(error: BaseException, folder: Path) -> str:
    """Write an error in one line, with the line of the user's code that raised it.

    Args:
        error: What was raised.
        folder: Paths below it are shortened.
    """
    if isinstance(error, SyntaxError):
        path, line = Path(error.filename or "?"), error.lineno
        return f"{type(error).__name__}: {error.msg} ({_short(path, folder)}:{line})"
    text = _text(error, " ".join(str(error).split()))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    if not own:
        return text
    return f"{text} ({_short(Path(own[-1].filename), folder)}:{own[-1].lineno})"


def first_line(error: BaseException) -> str:
    """Write an error of a library in one line: the first of what it says."""
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    return _text(error, next(filter(None, lines), ""))


def _text(error: BaseException, said: str) -> str:
    name = type(error).__name__
    return f"{name}: {said}" if said else name


def _is_users(filename: str) -> bool:
    """Tell the user's code from Python's, from installed packages' and from ours."""
    path = Path(filename)
    libraries = (Path(traceback.__file__).parent, Path(__file__).parents[1])
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    in_library = any(path.is_relative_to(library) for library in libraries)
    return not (filename.startswith("<") or installed or in_library)


def _short(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path
