"""A plan's dictionary → the report that people read: the stages, then the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.facts import facts_grid
from partitioner.report.names import compress_names, omit_repeats
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["plan_report", "plan_text", "plan_title"]

_MODULES_SHOWN = 12
"""Names per stage in the table; the plan file has all of them."""

_LEGEND = (
    "For one micro-batch. FLOPs and time: forward above, backward below. "
    "Memory: the peak, above its limit. Sent: over the boundary after the stage."
)


def plan_report(plan: Mapping[str, Any]) -> RenderableType:
    """Build the report of a plan.

    Args:
        plan: The plan as ``Plan.to_dict()`` returns it (schema version 1).

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    title = Text(plan_title(plan), style="bold")
    legend = Text(_LEGEND, style="dim")
    return Group(title, _stage_table(plan), legend, Text(), facts_grid(plan))


def plan_text(plan: Mapping[str, Any], *, width: int = DEFAULT_WIDTH) -> str:
    """Write the report of a plan as plain text.

    Args:
        plan: The plan as ``Plan.to_dict()`` returns it (schema version 1).
        width: Columns to fit.

    Returns:
        The report without colour, ending in one newline.
    """
    return to_text(plan_report(plan), width=width)


def plan_title(plan: Mapping[str, Any]) -> str:
    """Return the line that says what was planned, and for what."""
    provenance, options = plan["provenance"], plan["options"]
    model = str(provenance["model_class"]).rpartition(".")[2]
    stages = _number(len(plan["stages"]), "stage")
    micro_batches = _number(options["micro_batches"], "micro-batch", "micro-batches")
    return (
        f"{model}: {stages}, {micro_batches}, {options['schedule']}, "
        f"{provenance['dtype']}, {options['optimizer']}, on {provenance['profile']}"
    )


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _stage_table(plan: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("Stage", justify="right")
    table.add_column("Modules", overflow="fold", min_width=16)
    for heading in ("Params", "FLOPs", "Time", "Memory", "Sent", "Ckpt"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in plan["stages"]:
        busiest = stage["index"] == plan["bottleneck_stage"]
        table.add_row(*_stage_cells(stage), style="bold" if busiest else None)
    return table


def _stage_cells(stage: Mapping[str, Any]) -> list[Text]:
    flops = (stage["forward_flops"], stage["backward_flops"])
    times = (stage["forward_s"], stage["backward_s"])
    cells = [
        str(stage["index"]),
        _modules(stage["modules"]),
        format_count(stage["parameters"]),
        "\n".join(format_flops(number).removesuffix("FLOP") for number in flops),
        "\n".join(format_seconds(time_s) for time_s in times),
        _memory(stage),
        format_bytes(stage["sent_bytes"]) if stage["sent_bytes"] else "–",
        str(len(stage["checkpointed"]) or "–"),
    ]
    # Text, not str: a name in brackets is no markup.
    return [Text(cell) for cell in cells]


def _modules(modules: list[str]) -> str:
    names = omit_repeats(compress_names(modules)) or ["–"]
    hidden = len(names) - _MODULES_SHOWN
    if hidden > 1:
        names = [*names[:_MODULES_SHOWN], f"… {hidden} more"]
    return "\n".join(names)


def _memory(stage: Mapping[str, Any]) -> str:
    needed = format_bytes(stage["memory_bytes"])
    limit_bytes = stage["memory_limit_bytes"]
    limit = "no limit" if limit_bytes is None else f"/ {format_bytes(limit_bytes)}"
    return f"{needed}\n{limit}"
