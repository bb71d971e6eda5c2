"""What fills every stage's memory, against its limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from partitioner.report.html.charts import bars, table_of, vega
from partitioner.report.html.section import Section
from partitioner.report.memory import memory_parts
from partitioner.report.units import format_bytes, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["section"]

_KINDS = {
    "weights": "var(--held-1)",
    "gradients": "var(--held-2)",
    "master copies": "var(--held-3)",
    "optimizer states": "var(--held-4)",
    "buffers of ZeRO": "var(--held-5)",
    "wire buffers": "var(--carried-4)",
    "activations in flight": "var(--carried-1)",
    "received tensors": "var(--carried-2)",
    "sent tensors": "var(--carried-3)",
}
_MOMENT = "at the peak, for a moment"
"""What a backward or the optimizer's step holds at the fullest moment."""
_COLOURS = {**_KINDS, _MOMENT: "var(--moment)"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TOOLTIP = [
    alt.Tooltip("label:N", title="where"),
    alt.Tooltip("words:N", title="what"),
    alt.Tooltip("size:N", title="size"),
    alt.Tooltip("all:N", title="whole stage"),
]
_IN_SIGHT = 0.05
"""Where the fullest stage uses less of its limit, the limit is not drawn."""


def section(document: Mapping[str, Any]) -> Section:
    """Build the bars and the table."""
    parts = list(_parts(document["stages"]))
    met = {part["kind"] for part in parts}
    kinds = [kind for kind in _COLOURS if kind in met]
    return Section(
        id="memory",
        title="Memory",
        short="Memory",
        context={
            "kinds": kinds,
            "legend": {kind: _COLOURS[kind] for kind in kinds},
            "rows": [_row(stage, kinds) for stage in document["stages"]],
            "ranks": _ranks(document["ranks"]),
            "drawn": bool(_limits(document)),
            "alone": all(len(rank["stages"]) == 1 for rank in document["ranks"]),
        },
        charts={"memory-kinds": _chart(document, parts, kinds)},
    )


def _parts(stages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for stage in stages:
        for words, nbytes in memory_parts(stage):
            if nbytes > 0:
                yield {
                    "label": f"stage {stage['index']}",
                    "kind": words if words in _KINDS else _MOMENT,
                    "bytes": nbytes,
                    "size": format_bytes(nbytes),
                    "words": words,
                    "all": format_bytes(stage["memory_bytes"]),
                    "said": f"stage {stage['index']}, {words}: {format_bytes(nbytes)}",
                }


def _chart(
    document: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], kinds: list[str]
) -> dict[str, Any]:
    used = max(stage["memory_bytes"] for stage in document["stages"])
    limits = _limits(document)
    most = max(used, *(limit["bytes"] for limit in limits), 1)
    power = min((int(most).bit_length() - 1) // 10, len(_UNITS) - 1)
    scaled = [{**part, "value": part["bytes"] / 1024**power} for part in parts]
    axis = alt.Axis(title=_UNITS[power], tickCount=8)
    chart: alt.Chart | alt.LayerChart = bars(
        scaled,
        {kind: _COLOURS[kind] for kind in kinds},
        value=alt.X("value:Q", axis=axis),
        tooltip=_TOOLTIP,
    )
    if limits:
        ends = [{**limit, "value": limit["bytes"] / 1024**power} for limit in limits]
        ticks = alt.Chart(table_of(ends)).mark_tick(
            orient="vertical", thickness=3, color="var(--limit)", opacity=1
        )
        chart += ticks.encode(
            x=alt.X("value:Q"),
            y=alt.Y("label:N", sort=None),
            tooltip=[alt.Tooltip("size:N", title="limit")],
            description="said:N",
        )
    described = chart.properties(
        description="Peak memory of every stage by kind, with its limit as a line; "
        "the table below has the figures.",
    )
    return vega(described)


def _limits(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the limits to draw: of stages with a rank each, if they are in sight."""
    used = max(stage["memory_bytes"] for stage in document["stages"])
    return [
        {
            "label": f"stage {rank['stages'][0]}",
            "bytes": rank["memory_limit_bytes"],
            "size": format_bytes(rank["memory_limit_bytes"]),
            "said": f"stage {rank['stages'][0]}, limit: "
            + format_bytes(rank["memory_limit_bytes"]),
        }
        for rank in document["ranks"]
        if len(rank["stages"]) == 1
        and rank["memory_limit_bytes"] is not None
        and used > _IN_SIGHT * rank["memory_limit_bytes"]
    ]


def _row(stage: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
    found = dict.fromkeys(kinds, 0)
    for words, nbytes in memory_parts(stage):
        kind = words if words in _KINDS else _MOMENT
        if nbytes > 0:
            found[kind] += nbytes
    return {
        "index": stage["index"],
        "sizes": [format_bytes(found[k]) if found[k] else "–" for k in kinds],
        "all": format_bytes(stage["memory_bytes"]),
    }


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Say how full every rank's memory is."""
    rows = []
    for rank in ranks:
        limit, peak = rank["memory_limit_bytes"], rank["memory_bytes"]
        rows.append(
            {
                "stages": ", ".join(str(stage) for stage in rank["stages"]),
                "peak": format_bytes(peak),
                "limit": "none" if limit is None else format_bytes(limit),
                "share": format_share(peak / limit) if limit else "–",
            }
        )
    return rows
