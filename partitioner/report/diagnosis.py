"""A doctor's dictionary → the findings that people read, the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["diagnosis_report"]

_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def diagnosis_report(document: Mapping[str, Any]) -> RenderableType:
    """Build the report of an examination.

    Args:
        document: What ``Examination.to_dict()`` returns (schema version 1).

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    parts: list[RenderableType] = []
    for finding in document["findings"]:
        parts += [_heading(finding), _body(finding), Text()]
    return Group(*parts, Text(_summary(document), style="bold"))


def _heading(finding: Mapping[str, Any]) -> Text:
    severity = finding["severity"]
    heading = Text(severity, style=_STYLES[severity])
    heading.append(f" {finding['code']}: ", style="bold")
    heading.append(finding["where"])
    return heading


def _body(finding: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, min_width=len("  change"))
    grid.add_column(overflow="fold")
    grid.add_row("  why", Text(finding["why"]))
    mark = " [--fix]" if finding["edits"] else ""
    grid.add_row("  change", Text(finding["change"] + mark))
    return grid


def _summary(document: Mapping[str, Any]) -> str:
    counts = document["counts"]
    words = {"error": "errors", "warning": "warnings", "info": "notes"}
    found = ", ".join(
        f"{counts[severity]} {word if counts[severity] != 1 else word[:-1]}"
        for severity, word in words.items()
    )
    fixable = sum(bool(finding["edits"]) for finding in document["findings"])
    mended = f"; --fix mends {fixable}" if fixable else ""
    return f"{found} (DeepSpeed {document['deepspeed']}){mended}"
