"""A comparison's dictionary → the table of a plan and other splits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HEADINGS",
    "LEGEND",
    "comparison_cells",
    "comparison_report",
    "comparison_text",
]

HEADINGS = ("Split", "Bottleneck", "Bubble", "Memory", "Recomp.", "Step", "vs plan")
"""Of the table's columns."""

LEGEND = (
    "Bottleneck: the slowest stage, for one micro-batch. Memory: the fullest stage. "
    "Bubble and step time: simulated. vs plan: step time against this plan's. "
    "DeepSpeed's methods, equal FLOPs and equal blocks cut between whole layers only."
)


def comparison_report(comparison: Mapping[str, Any]) -> RenderableType:
    """Build the table.

    Args:
        comparison: What ``Comparison.to_dict()`` returns.

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    splits = comparison["splits"]
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column(HEADINGS[0], min_width=20)
    for heading in HEADINGS[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for split in splits:
        cells = comparison_cells(split, splits[0]["simulated_s"])
        table.add_row(*map(Text, cells))  # Text, not str: a bracket is no markup
    faults = [
        f"{split['name']}: {'; '.join(split['faults'])}"
        for split in splits
        if split["faults"]
    ]
    notes = [Text(f"! {fault}", style="yellow") for fault in faults]
    return Group(table, *notes, Text(LEGEND, style="dim"))


def comparison_text(
    comparison: Mapping[str, Any], *, width: int = DEFAULT_WIDTH
) -> str:
    """Write the table as plain text.

    Args:
        comparison: What ``Comparison.to_dict()`` returns.
        width: Columns to fit.
    """
    return to_text(comparison_report(comparison), width=width)


def comparison_cells(split: Mapping[str, Any], plan_s: float) -> list[str]:
    """Return the words of one row.

    Args:
        split: An entry of a comparison's ``splits``.
        plan_s: Simulated step time of the plan.
    """
    slower = split["simulated_s"] / plan_s - 1 if plan_s > 0 else 0.0
    mark = " !" if split["faults"] else ""
    recompute_s = split["recompute_s"]
    return [
        f"{split['name']}{mark}",
        format_seconds(split["bottleneck_s"]),
        format_share(split["bubble_share"]),
        format_bytes(split["memory_bytes"]),
        format_seconds(recompute_s) if recompute_s else "–",
        format_seconds(split["simulated_s"]),
        f"{100 * slower:+.1f} %" if slower else "–",
    ]
