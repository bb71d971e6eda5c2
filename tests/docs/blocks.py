"""A page of the documentation → its blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "Block", "blocks", "pages"]

DOCS = Path(__file__).parents[2] / "docs"

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str
    line: int
    """Where its first line is."""
    before: str
    """The page up to it."""


def blocks(page: str, language: str = "") -> list[Block]:
    """Return the blocks of a page, or those of one language.

    Args:
        page: Its name, without ``.md``.
        language: What stands behind the opening fence; empty: any.
    """
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    found = [
        Block(
            language=match[1],
            text=match[2],
            line=text.count("\n", 0, match.start(2)) + 1,
            before=text[: match.start()],
        )
        for match in _FENCED.finditer(text)
    ]
    return [block for block in found if language in ("", block.language)]


def pages() -> list[str]:
    """Return the names of all pages."""
    return sorted(path.stem for path in DOCS.glob("*.md"))
