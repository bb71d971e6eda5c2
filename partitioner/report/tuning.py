"""A tuning's dictionary → the table of all layouts, and what to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.console import DEFAULT_WIDTH, to_text
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["tuning_report", "tuning_text"]

_LEGEND = (
    "*: the fastest that fits, of measured ones by the clock. !: out, see below. "
    "stages × replicas, which share the optimizer's states (ZeRO-1). M: micro-batches "
    "of a replica. Step: simulated, with "
    "the replicas' sums of gradients; the optimizer's own step is not counted. Eff.: "
    "throughput against as many times one GPU's. Memory: the fullest GPU's peak."
)


def tuning_report(tuning: Mapping[str, Any]) -> RenderableType:
    """Build the report.

    Args:
        tuning: What ``Tuning.to_dict()`` returns (schema version 1).

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("Layout", overflow="fold", min_width=16)
    measured = tuning["measured_on"] is not None
    headings = ["M", "Step", "Samples/s", "Eff.", "Bubble", "Memory"]
    if measured:
        headings.insert(2, "Measured")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for index, row in enumerate(tuning["rows"]):
        best = index == tuning["best"]
        cells = _cells(row, best=best)
        if measured:
            cells.insert(3, _measured(row))
        table.add_row(*cells, style="bold" if best else None)
    return Group(
        Text(_title(tuning), style="bold"),
        table,
        Text(_LEGEND, style="dim"),
        Text(),
        *(Text(line) for line in _notes(tuning)),
    )


def tuning_text(tuning: Mapping[str, Any], *, width: int = DEFAULT_WIDTH) -> str:
    """Write the report as plain text.

    Args:
        tuning: What ``Tuning.to_dict()`` returns.
        width: Columns to fit.
    """
    return to_text(tuning_report(tuning), width=width)


def _title(tuning: Mapping[str, Any]) -> str:
    model = str(tuning["model_class"]).rpartition(".")[2]
    gpus = f"{tuning['gpus']} × {tuning['profile']}"
    if tuning["nodes"] > 1:
        gpus += f" on {tuning['nodes']} nodes"
    return (
        f"{model}: {tuning['batch']} samples a step, in micro-batches of "
        f"{tuning['micro_batch_samples']}, {tuning['dtype']}, on {gpus}, "
        f"{format_bytes(tuning['memory_limit_bytes'])} each"
    )


def _cells(row: Mapping[str, Any], *, best: bool) -> list[Text]:
    def shown(key: str, form: Callable[[float], str]) -> str:
        return "–" if row[key] is None else form(row[key])

    mark = " !" if row["reason"] else " *" if best else ""
    cells = [
        f"{row['name']}{mark}",
        shown("micro_batches", str),
        shown("step_s", format_seconds),
        shown("samples_per_s", format_count),
        shown("efficiency", format_share),
        shown("bubble_share", format_share),
        shown("memory_bytes", format_bytes),
    ]
    return [Text(cell) for cell in cells]


def _measured(row: Mapping[str, Any]) -> Text:
    took_s = row["measured_step_s"]
    if took_s is None:
        return Text("!" if row["measured_reason"] else "–")
    return Text(format_seconds(took_s))


def _ran(tuning: Mapping[str, Any]) -> Iterator[str]:
    """Say of every layout that was to be run what came of it."""
    for row in tuning["rows"]:
        took_s = row["measured_step_s"]
        if took_s is None:
            if row["measured_reason"]:
                yield f"! {row['name']}: {row['measured_reason']}"
            continue
        drift = 100 * (took_s / row["step_s"] - 1)
        said = f"Measured: {row['name']}, {format_seconds(took_s)} ({drift:+.0f} %)"
        if row["measured_memory_bytes"]:
            said += f", {format_bytes(row['measured_memory_bytes'])}"
        yield said
    if tuning["measured_on"]:
        yield (
            f"Measured on {tuning['measured_on']}, with the optimizer's step; in "
            "brackets against the prediction."
        )


def _notes(tuning: Mapping[str, Any]) -> Iterator[str]:
    for row in tuning["rows"]:
        if row["reason"]:
            advice = f" ({row['advice'].rstrip('.')})" if row["advice"] else ""
            yield f"! {row['name']}: {row['reason']}{advice}"
    baseline = tuning["rows"][0]
    if baseline["reason"] and tuning["one_gpu_step_s"]:
        yield (
            "Efficiency is against one GPU with memory enough: "
            f"{format_seconds(tuning['one_gpu_step_s'])} for a step."
        )
    yield from _ran(tuning)
    if tuning["best"] is None:
        yield "No layout fits."
        return
    best = tuning["rows"][tuning["best"]]
    if best["measured_step_s"]:
        yield f"Best: {best['name']}, by what was measured."
    elif tuning["one_gpu_step_s"]:
        gain = tuning["one_gpu_step_s"] / best["step_s"]
        yield f"Best: {best['name']}, {gain:.2f} times one GPU."
    yield f"Launch: {tuning['launch']}"
