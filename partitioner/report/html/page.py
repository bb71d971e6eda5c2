"""A plan's document → its page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from partitioner.report.html import (
    boundaries,
    comparison,
    graph,
    limits,
    memory,
    notes,
    stages,
    summary,
    timeline,
)
from partitioner.report.html.charts import library
from partitioner.report.table import plan_title

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["rendered"]

SECTIONS = (
    summary.section,
    stages.section,
    memory.section,
    graph.section,
    boundaries.section,
    timeline.section,
    comparison.section,
    limits.section,
    notes.section,
)
"""The page from top to bottom."""


def rendered(document: Mapping[str, Any]) -> str:
    """Write the page.

    Args:
        document: What ``plan_page.page_document`` returns.
    """
    sections = [section(document) for section in SECTIONS]
    model, _, subtitle = plan_title(document).partition(": ")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            model=model,
            subtitle=subtitle,
            sections=sections,
            stages=len(document["stages"]),
            charts={k: v for section in sections for k, v in section.charts.items()},
            library=library(),
            provenance=document["provenance"],
        )
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("partitioner.report.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(path: str) -> Markup:
    """Allow a browser to break a module's path after its dots."""
    return Markup(".<wbr>").join(path.split("."))
