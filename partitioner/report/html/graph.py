"""The cut model as a graph: modules in modules, data flowing down, cuts between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from partitioner.report.html.boxes import Boxes
from partitioner.report.html.charts import vega
from partitioner.report.html.section import Section
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["section"]

_COLOURS = {
    "data": "var(--flow)",
    "crossing": "var(--cut)",
    "tie": "var(--tie)",
}
"""Kind of line → its colour."""


def section(document: Mapping[str, Any]) -> Section:
    """Build the boxes, and the chart that draws lines between them."""
    boxes = Boxes(document["outline"], _crossing(document))
    return Section(
        id="graph",
        title="The cut model",
        short="Model",
        context={
            "root": boxes.root,
            "model": document["outline"]["kind"],
            "templates": boxes.templates,
            "example": _example(document["stages"]),
        },
        charts={"flows": _lines()},
    )


def _example(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the path of a module that the model has."""
    names = [name for stage in stages for name in stage["modules"]]
    whole = [name for name in names if not name.endswith(")")] or names
    return str(whole[len(whole) // 2]) if whole else "layers.0"


def _crossing(document: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        found["after_stage"]: {
            "before": found["after_stage"],
            "after": found["after_stage"] + 1,
            "tensors": len(found["values"]),
            "bytes": format_bytes(sum(value["bytes"] for value in found["values"])),
            "far": found["between_nodes"],
        }
        for found in document["boundaries"]
    }


def _lines() -> dict[str, Any]:
    """Return lines through points that the page's script measures, with heads."""
    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    base = alt.Chart(alt.NamedData(name="points")).encode(
        x=alt.X("x:Q", scale=None, axis=None),
        y=alt.Y("y:Q", scale=None, axis=None),
        color=alt.Color("kind:N", scale=scale, legend=None),
    )
    lines = base.mark_line(strokeWidth=1.6, strokeJoin="round", aria=False).encode(
        detail="edge:N",
        order="place:Q",
        strokeDash=alt.StrokeDash("kind:N", scale=_dashes(), legend=None),
    )
    heads = (
        base.transform_filter("datum.head")
        .mark_point(filled=True, size=60, opacity=1, aria=False)
        .encode(shape=alt.Shape("head:N", scale=None))
    )
    labels = (
        base.transform_filter("datum.label")
        .mark_text(align="left", dx=12, dy=-7, aria=False, fontWeight=600, fontSize=12)
        .encode(text="label:N")
    )
    return vega((lines + heads + labels).properties(width=100, height=100))


def _dashes() -> alt.Scale:
    """Return the pattern of every kind of line; a colour alone would not do."""
    return alt.Scale(domain=list(_COLOURS), range=[[1, 0], [1, 0], [3, 3]])
