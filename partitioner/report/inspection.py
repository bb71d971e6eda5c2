"""A plan's dictionary, with what else was asked for → one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.report.breakdown import breakdown_report
from partitioner.report.comparison import comparison_report
from partitioner.report.explanation import explanation_report
from partitioner.report.table import plan_report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["inspection_report"]


def inspection_report(document: Mapping[str, Any]) -> RenderableType:
    """Build the report of a plan and of whatever was asked for beside it.

    Args:
        document: The plan as ``Plan.to_dict()`` returns it, and under ``timeline``
            (``rows`` and ``legend``), ``comparison`` and ``explanation`` what else
            there is to show; a ``breakdown`` takes the place of the stages.
    """
    table = breakdown_report if "breakdown" in document else plan_report
    parts = [table(document)]
    if "timeline" in document:
        timeline = document["timeline"]
        rows = Text("\n".join(timeline["rows"]), no_wrap=True)
        legend = Text(timeline["legend"], style="dim")
        parts += [Text("\nOne step, simulated", style="bold"), rows, legend]
    if "comparison" in document:
        title = Text("\nOther splits of the same model", style="bold")
        parts += [title, comparison_report(document["comparison"])]
    if "explanation" in document:
        title = Text("\nWhat limits this plan", style="bold")
        parts += [title, explanation_report(document["explanation"])]
    return Group(*parts)
