"""One part of the page: a heading, a template, and what the template shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Section", "slowest_rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the page."""

    id: str
    """Its address in the page, and the name of its template."""
    title: str
    short: str
    """What the page's navigation calls it."""
    context: Mapping[str, Any]
    """What the template shows, by name."""
    charts: Mapping[str, Any] = field(default_factory=dict)
    """Vega's specifications, by the id of the element that they are drawn in."""


def slowest_rank(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rank of a page's document that holds up all others."""
    slowest = document["bottleneck_stage"]
    return next(rank for rank in document["ranks"] if slowest in rank["stages"])
