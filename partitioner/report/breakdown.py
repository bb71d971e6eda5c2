"""A breakdown's dictionary → the table of modules, operators or nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.table import plan_title
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["breakdown_report", "breakdown_text"]

_LEGEND = {
    "module": "Each module with all that is inside it. ",
    "operator": "All calls of one function or class of layers together. ",
    "node": "Operations that cost nothing are left out. ",
}
_COMMON = (
    "For one micro-batch. FLOPs: forward and backward. Saved: bytes first kept for "
    "backward there. Share: of forward and backward time."
)


def breakdown_report(document: Mapping[str, Any]) -> RenderableType:
    """Build the table of a breakdown.

    Args:
        document: A plan as ``Plan.to_dict()`` returns it, with what
            ``Plan.breakdown()`` returns under ``breakdown``.

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    found = document["breakdown"]
    legend = Text(_LEGEND[found["by"]] + _COMMON, style="dim")
    return Group(Text(plan_title(document), style="bold"), _table(found), legend)


def breakdown_text(document: Mapping[str, Any], *, width: int = DEFAULT_WIDTH) -> str:
    """Write the table of a breakdown as plain text.

    Args:
        document: As for :func:`breakdown_report`.
        width: Columns to fit.

    Returns:
        The table without colour, ending in one newline.
    """
    return to_text(breakdown_report(document), width=width)


def _table(found: Mapping[str, Any]) -> Table:
    by, total = found["by"], found["total"]
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_footer=True)
    footer = _cells(total, total, "total", by)
    headings = [by.capitalize(), "Calls" if by == "operator" else "Stage", "Params"]
    headings += ["FLOPs", "Forward", "Backward", "Saved", "Share"]
    for heading, last in zip(headings, footer, strict=True):
        is_name = heading == headings[0]
        table.add_column(
            heading,
            footer=last,
            justify="left" if is_name else "right",
            overflow="fold" if is_name else "ellipsis",
            no_wrap=not is_name,
            min_width=16 if is_name else None,
        )
    for row in found["rows"]:
        table.add_row(*_cells(row, total, _name(row, found), by))
    return table


def _name(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Indent modules in the model's order; show the operator of a node beside it."""
    name = str(row["name"])
    if found["by"] == "module" and found["sort"] is None:
        depth = name.count(".")
        name = "  " * depth + name.rpartition(".")[2]
    return f"{name} {row['kind']}" if row["kind"] else name


def _cells(
    row: Mapping[str, Any], total: Mapping[str, Any], name: str, by: str
) -> list[Text]:
    time_s = row["forward_s"] + row["backward_s"]
    whole_s = total["forward_s"] + total["backward_s"]
    flops = row["forward_flops"] + row["backward_flops"]
    cells = [
        name,
        str(row["calls"]) if by == "operator" else _stages(row["stages"]),
        format_count(row["parameters"]),
        format_flops(flops).removesuffix("FLOP").rstrip(),
        format_seconds(row["forward_s"]),
        format_seconds(row["backward_s"]),
        format_bytes(row["saved_bytes"]),
        format_share(time_s / whole_s) if whole_s else "–",
    ]
    # Text, not str: a name in brackets is no markup.
    return [Text(cell) for cell in cells]


def _stages(stages: Sequence[int]) -> str:
    if not stages:
        return "–"
    first, last = stages[0], stages[-1]
    return str(first) if first == last else f"{first}–{last}"
