"""What every stage does for one micro-batch: bars, and the table of their figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from partitioner.report.html.charts import SECONDS, bars, vega
from partitioner.report.html.section import Section, slowest_rank
from partitioner.report.names import compress_names
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["section"]

_KINDS = {
    "forward": "var(--forward)",
    "backward": "var(--backward)",
    "recomputation": "var(--recompute)",
    "communication": "var(--communication)",
}
"""What a stage does, and its colour."""
_FIELDS = {
    "forward": "forward_s",
    "backward": "backward_s",
    "recomputation": "recompute_s",
    "communication": "communication_s",
}
"""What a stage does → the plan's name for its time."""
_TOOLTIP = [
    alt.Tooltip("label:N", title="where"),
    alt.Tooltip("kind:N", title="what"),
    alt.Tooltip("time:N", title="time"),
    alt.Tooltip("all:N", title="whole stage"),
]


def section(document: Mapping[str, Any]) -> Section:
    """Build the bars and the table."""
    stages = document["stages"]
    met = [kind for kind, name in _FIELDS.items() if any(s[name] for s in stages)]
    return Section(
        id="stages",
        title="Stages",
        short="Stages",
        context={
            "kinds": met,
            "legend": {kind: _KINDS[kind] for kind in met},
            "rows": [_row(stage, document, met) for stage in stages],
        },
        charts={"stage-times": _chart(stages, met)},
    )


def _chart(stages: Sequence[Mapping[str, Any]], met: list[str]) -> dict[str, Any]:
    parts = [
        {
            "label": f"stage {stage['index']}",
            "kind": kind,
            "time_s": stage[_FIELDS[kind]],
            "time": format_seconds(stage[_FIELDS[kind]]),
            "all": format_seconds(stage["time_s"]),
            "said": f"stage {stage['index']}, {kind}: "
            + format_seconds(stage[_FIELDS[kind]]),
        }
        for stage in stages
        for kind in met
        if stage[_FIELDS[kind]] > 0
    ]
    axis = alt.Axis(labelExpr=SECONDS, title="for one micro-batch", tickCount=8)
    chart = bars(
        parts,
        {kind: _KINDS[kind] for kind in met},
        value=alt.X("time_s:Q", axis=axis),
        tooltip=_TOOLTIP,
    )
    described = chart.properties(
        description="Time of every stage for one micro-batch, by what it does; "
        "the table below has the figures.",
    )
    return vega(described)


def _row(
    stage: Mapping[str, Any], document: Mapping[str, Any], met: list[str]
) -> dict[str, Any]:
    return {
        "index": stage["index"],
        "busiest": stage["index"] in slowest_rank(document)["stages"],
        "modules": compress_names(stage["modules"]),
        "parameters": format_count(stage["parameters"]),
        "flops": [
            format_flops(stage[name]).removesuffix("FLOP")
            for name in ("forward_flops", "backward_flops")
        ],
        "times": [_time(stage[_FIELDS[kind]]) for kind in met],
        "time": format_seconds(stage["time_s"]),
        "sent": format_bytes(stage["sent_bytes"]) if stage["sent_bytes"] else "–",
        "checkpointed": compress_names(stage["checkpointed"]),
    }


def _time(time_s: float) -> str:
    return format_seconds(time_s) if time_s else "–"
