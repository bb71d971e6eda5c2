"""Write files whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from partitioner.errors import PartitionerError

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Write a file; an existing one is replaced only when all is written.

    Args:
        path: Where to.
        text: What to write.
        what: What it is, for the error.

    Raises:
        PartitionerError: The file cannot be written.
    """
    target = Path(path)
    try:
        _replace(target, text)
    except OSError as error:
        message = f"{what} could not be written to {target}: {error.strerror}"
        raise PartitionerError(message, hint="is the folder there?") from error


def _replace(target: Path, text: str) -> None:
    """Write next to the file first, then take its place, readable as the umask says."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
