"""What keeps the plan from being faster, and what other stages would give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.report.explanation import explanation_lines
from partitioner.report.html.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["section"]


def section(document: Mapping[str, Any]) -> Section:
    """Build the list of labels, each with its sentences."""
    found: dict[str, list[str]] = {}
    label = ""
    for new, words in explanation_lines(document["explanation"]):
        label = new or label
        found.setdefault(label, []).append(words)
    context = {"entries": found}
    return Section(
        id="limits", title="What limits this plan", short="Limits", context=context
    )
