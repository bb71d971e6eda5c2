"""Reports on a terminal or in a pipe whose encoding lacks their characters."""

from __future__ import annotations

import codecs
import io
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["degrade", "say"]

_NAME = "partitioner-plain"
_PLAIN = str.maketrans(
    {
        "…": "~",
        "–": "-",
        "×": "x",
        "─": "-",
        "━": "=",
        "│": "|",
        "·": ".",
        "→": ">",
        "“": '"',
        "”": '"',
        "µ": "u",
        "∞": "inf",
    }
)
"""One character for one where columns depend on it."""


def degrade(streams: Iterable[Any]) -> None:
    r"""Let streams write what their encoding lacks as something near it.

    Columns stay aligned, since characters of tables become one character each. What has
    no counterpart, in a module's name, is written as its code (``\u03b1``).

    Args:
        streams: Those that are no text streams of the operating system are left alone.
    """
    codecs.register_error(_NAME, _replacement)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)


def say(text: str) -> None:
    """Write a line for the user on stderr, as far as its encoding goes.

    Without ``file=`` click writes UTF-8 to a stream that says it is ASCII.
    """
    click.echo(text, file=sys.stderr)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object
    plain = [_plain(text, place) for place in range(error.start, error.end)]
    return "".join(plain), error.end


def _plain(text: str, place: int) -> str:
    """Return what stands for one character: three dots for those of a sentence."""
    before, after = text[max(place - 1, 0) : place], text[place + 1 : place + 2]
    if text[place] == "…" and not before.strip(" =(") and not after.strip(" \n,)"):
        return "..."
    found = text[place].translate(_PLAIN)
    return (
        found if found.isascii() else found.encode("ascii", "backslashreplace").decode()
    )
