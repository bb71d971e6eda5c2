"""A new plan's dictionary, and what the old one took → the report of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from partitioner.report.table import plan_report
from partitioner.report.units import format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["replan_report"]


def replan_report(document: Mapping[str, Any]) -> RenderableType:
    """Build the report.

    Args:
        document: The plan as ``Plan.to_dict()`` returns it, and under ``before`` the
            simulation of the plan that ran, by the same times.
    """
    before, after = document["before"], document["simulation"]
    gain = before["step_s"] / after["step_s"] if after["step_s"] else 1.0
    text = (
        f"By the measured times a step takes {format_seconds(after['step_s'])} "
        f"(bubble {format_share(after['bubble_share'])}); as it was cut, "
        f"{format_seconds(before['step_s'])} ({format_share(before['bubble_share'])}): "
        f"{gain:.2f} times as fast."
    )
    return Group(plan_report(document), Text(), Text(text, style="bold"))
