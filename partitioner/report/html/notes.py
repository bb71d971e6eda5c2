"""What the figures rest on: prices, guards, assumptions, what has no price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.report.facts import facts
from partitioner.report.html.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["section"]

_ABOVE = {"step time", "bottleneck", "bubble", "memory"}
"""Facts that the top of the page says."""
_LONG = 6
"""Entries from which on a list is folded."""


def section(document: Mapping[str, Any]) -> Section:
    """Build the list of facts."""
    entries = [
        {
            "label": label,
            "values": values,
            "folded": len(values) > _LONG,
            "alarming": label == "warnings"
            or (label == "not priced" and bool(document["unpriced"])),
        }
        for label, values in facts(document)
        if label not in _ABOVE
    ]
    context = {"entries": entries}
    return Section(
        id="notes", title="What this rests on", short="Notes", context=context
    )
