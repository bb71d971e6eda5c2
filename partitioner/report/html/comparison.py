"""The plan next to what other methods would cut, all simulated alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from partitioner.report.comparison import HEADINGS, LEGEND, comparison_cells
from partitioner.report.html.charts import BAR, SECONDS, table_of, vega
from partitioner.report.html.section import Section
from partitioner.report.units import format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["section"]

_TOOLTIP = [
    alt.Tooltip("label:N", title="split"),
    alt.Tooltip("step:N", title="step"),
    alt.Tooltip("bubble:N", title="bubble"),
    alt.Tooltip("faults:N", title="faults"),
]


def section(document: Mapping[str, Any]) -> Section:
    """Build the bars and the table."""
    splits = document["comparison"]["splits"]
    plan_s = splits[0]["simulated_s"]
    return Section(
        id="comparison",
        title="Next to other splits",
        short="Comparison",
        context={
            "headings": HEADINGS,
            "rows": [comparison_cells(split, plan_s) for split in splits],
            "faults": [split for split in splits if split["faults"]],
            "legend": LEGEND,
        },
        charts={"other-splits": _chart(splits)},
    )


def _chart(splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [
        {
            "label": split["name"] + (" !" if split["faults"] else ""),
            "step_s": split["simulated_s"],
            "step": format_seconds(split["simulated_s"]),
            "bubble": format_share(split["bubble_share"]),
            "faults": "; ".join(split["faults"]) or "none",
            "said": f"{split['name']}: {format_seconds(split['simulated_s'])}",
            "colour": "var(--ours)" if place == 0 else "var(--other)",
        }
        for place, split in enumerate(splits)
    ]
    base = alt.Chart(table_of(rows)).encode(
        x=alt.X(
            "step_s:Q",
            axis=alt.Axis(labelExpr=SECONDS, title="step, simulated", tickCount=8),
        ),
        y=alt.Y("label:N", sort=None, title=None, axis=alt.Axis(ticks=False)),
        description="said:N",
        tooltip=_TOOLTIP,
    )
    drawn = base.mark_bar().encode(color=alt.Color("colour:N", scale=None))
    described = drawn.properties(
        width="container",
        height=alt.Step(BAR),
        description="Simulated step time of this plan and of other splits; the table "
        "below has the figures.",
    )
    return vega(described)
