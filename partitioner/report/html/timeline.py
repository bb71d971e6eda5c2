"""One step, as the simulator ran it: every rank's passes, messages and idle time."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import altair as alt

from partitioner.report.html.charts import SECONDS, kinds, vega
from partitioner.report.html.section import Section
from partitioner.report.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["EVENTS_SHOWN", "section"]

EVENTS_SHOWN = 6_000
"""Events that a page draws; of a longer step the beginning and the end are shown."""
_NUMBERED = 1_000
"""Up to so many events carry the number of their micro-batch."""
_KINDS = {
    "forward": ("forward", "var(--forward)"),
    "backward": ("backward", "var(--backward)"),
    "input_gradient": ("backward", "var(--backward)"),
    "weight_gradient": ("weight gradient", "var(--weight-gradient)"),
    "activation": ("communication", "var(--communication)"),
    "gradient": ("communication", "var(--communication)"),
}
"""Kind of event → what the legend calls it, and its colour."""
_IDLE = "bubble"
_COLUMNS = ("rank", "kind", "batch", "stage", "start", "end", "time", "at")
_TOOLTIP = [
    alt.Tooltip("kind:N", title="what"),
    alt.Tooltip("batch:N", title="micro-batch"),
    alt.Tooltip("stage:N", title="stage"),
    alt.Tooltip("time:N", title="takes"),
    alt.Tooltip("at:N", title="starts at"),
]
_ROW_HEIGHT = 34
_DIGIT_WIDTH = 8
"""Pixels of a digit; a number is drawn in an event that it fits into."""


def section(document: Mapping[str, Any]) -> Section:
    """Build the picture and the table of ranks."""
    events = document["events"]
    shown = _shown(events)
    simulated = document["simulation"]
    return Section(
        id="timeline",
        title="One step, simulated",
        short="Step",
        context={
            "step": format_seconds(simulated["step_s"]),
            "schedule": simulated["schedule"],
            "legend": {**_colours(shown), _IDLE: "var(--idle)"},
            "hidden": len(events) - len(shown),
            "rows": [_row(i, rank) for i, rank in enumerate(simulated["ranks"])],
        },
        charts={"step-events": _chart(document, shown)},
    )


def _shown(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the events to draw: passes before messages, then both ends of the step."""
    if len(events) <= EVENTS_SHOWN:
        return events
    passes = [e for e in events if e["kind"] not in ("activation", "gradient")]
    if len(passes) <= EVENTS_SHOWN:
        return passes
    by_time = sorted(passes, key=lambda event: float(event["start_s"]))
    half = EVENTS_SHOWN // 2
    return [*by_time[:half], *by_time[-half:]]


def _chart(
    document: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    step_s = document["simulation"]["step_s"]
    labels = [
        _label(rank, use) for rank, use in enumerate(document["simulation"]["ranks"])
    ]
    rows = alt.Y(
        "rank:N",
        title=None,
        axis=alt.Axis(ticks=False),
        scale=alt.Scale(domain=labels, paddingInner=0.25),
    )
    base = alt.Chart(_data(events, labels)).encode(y=rows, tooltip=_TOOLTIP)
    passes: alt.Chart = (
        base.mark_rect(clip=True, stroke="var(--page)", strokeWidth=0.5, aria=False)
        .encode(x=_time(step_s), x2="end:Q", color=kinds(_colours(events)))
        .add_params(_slider("zoom", 1, 40), _slider("from", 0, 100, unit=" (%)"))
    )
    drawn: alt.Chart | alt.LayerChart | alt.FacetChart = passes
    if len(events) <= _NUMBERED:
        drawn = passes + _numbers(base, step_s)
    chart = drawn.properties(
        width="container",
        height=_ROW_HEIGHT * len(labels),
        view=alt.ViewBackground(fill="var(--idle)"),
        description="The simulated step of every rank against time; the table below "
        "has each rank's bubble.",
    )
    return vega(chart)


def _time(step_s: float) -> alt.X:
    """Return the axis of time; both of its ends follow the two sliders."""
    start = f"{step_s} * (1 - 1 / zoom) * from / 100"
    ends = alt.ExprRef(f"[{start}, {start} + {step_s} / zoom]")
    axis = alt.Axis(labelExpr=SECONDS, title=None, tickCount=10)
    return alt.X("start:Q", scale=alt.Scale(domain=ends, nice=False), axis=axis)


def _slider(name: str, least: float, most: float, *, unit: str = "") -> alt.Parameter:
    """Return a number that a reader sets, at its least to begin with."""
    bound = alt.binding_range(min=least, max=most, step=0.5, name=f"{name}{unit} ")
    return alt.param(name=name, value=least, bind=bound)


def _numbers(base: alt.Chart, step_s: float) -> alt.Chart:
    """Write the micro-batch into every pass that is wide enough."""
    pixels = f"(datum.end - datum.start) / {step_s} * zoom * width"
    wide = f"{pixels} > length(toString(datum.batch)) * {_DIGIT_WIDTH} + 2"
    chart: alt.Chart = (
        base.transform_calculate(middle="(datum.start + datum.end) / 2")
        .transform_filter("datum.kind != 'communication'")
        .mark_text(clip=True, aria=False)
        .encode(
            x="middle:Q",
            text="batch:N",
            color=alt.condition(
                "datum.kind == 'forward'",
                alt.value("var(--on-light)"),
                alt.value("var(--on-dark)"),
            ),
            opacity=alt.condition(wide, alt.value(1), alt.value(0)),
        )
    )
    return chart


def _colours(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    met = {event["kind"] for event in events}
    return dict(shown for kind, shown in _KINDS.items() if kind in met)


def _label(rank: int, use: Mapping[str, Any]) -> str:
    return f"rank {rank} · {format_share(use['bubble_share'])} idle"


def _data(events: Iterable[Mapping[str, Any]], labels: Sequence[str]) -> alt.InlineData:
    """Return events as lines of text, a third as long as one object for each."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for event in events:
        start_s, end_s = event["start_s"], event["end_s"]
        writer.writerow(
            (
                labels[event["rank"]],
                _KINDS[event["kind"]][0],
                event["micro_batch"],
                event["chunk"],
                f"{start_s:.6g}",
                f"{end_s:.6g}",
                format_seconds(end_s - start_s),
                format_seconds(start_s),
            )
        )
    form = alt.CsvDataFormat(type="csv", parse={"start": "number", "end": "number"})
    return alt.InlineData(values=lines.getvalue(), format=form)


def _row(index: int, rank: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rank": f"rank {index}",
        "bubble": format_share(rank["bubble_share"]),
        "compute": format_seconds(rank["compute_s"]),
        "communication": format_seconds(rank["communication_s"]),
        "in_flight": rank["in_flight"],
        "held": format_bytes(rank["in_flight_bytes"]),
    }
