"""What all pictures share: how they look, and how Altair's charts get into a page."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import altair as alt
import vl_convert

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BAR", "SECONDS", "bars", "kinds", "library", "table_of", "vega"]

_VEGA_LITE = "6.4"
"""Version of the language that Altair 6 writes and vl-convert reads."""
_FONT = 'system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'
BAR = 30
"""Pixels of a bar and the space below it."""
_MANY = 10
"""From so many bars on they are thinner."""
_THIN_BAR = 20
SECONDS = "replace(format(datum.value, '~s'), regexp('([a-zµ]?)$'), ' $1s')"
"""The label of a tick in seconds: 20 ms, 1.5 s."""
_FAINT, _RULE = "var(--faint)", "var(--rule)"


@cache
def library() -> str:
    """Return Vega and Vega-Embed as one script, out of vl-convert's package."""
    entry = "window.vegaEmbed = vegaEmbed;"
    script = vl_convert.javascript_bundle(entry, vl_version=_VEGA_LITE)
    return script.replace("</script", r"<\/script")


def vega(chart: alt.Chart | alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    """Compile a chart, in the page's colours, to what Vega draws in a browser.

    Colours are variables of the page's style sheet, so that the pictures follow it
    from light to dark and onto paper.
    """
    styled = (
        chart.configure(background="transparent", font=_FONT, padding=0)
        .configure_view(strokeWidth=0)
        .configure_text(fontSize=13)
        .configure_axis(
            labelColor=_FAINT,
            titleColor=_FAINT,
            domainColor=_RULE,
            tickColor=_RULE,
            gridColor=_RULE,
            labelFontSize=13,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=260,
        )
    )
    return vl_convert.vegalite_to_vega(styled.to_dict(), vl_version=_VEGA_LITE)


def table_of(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as a chart's data."""
    return alt.InlineData(values=[dict(row) for row in rows])


def kinds(colours: Mapping[str, str]) -> alt.Color:
    """Return a colour for every kind; the page itself has the legend.

    Args:
        colours: Kind → colour.
    """
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("kind:N", scale=scale, legend=None)


def bars(
    rows: Sequence[Mapping[str, Any]],
    colours: Mapping[str, str],
    *,
    value: alt.X,
    tooltip: Sequence[str | alt.Tooltip],
) -> alt.Chart:
    """Return one bar for each row's ``label``, its ``kind``s one after another.

    Args:
        rows: With ``label``, ``kind``, the value's field, what the tooltip shows, and
            ``said``: the bar in words.
        colours: Kind → colour.
        value: The encoding of the value.
        tooltip: Fields to show while the pointer is on a part.
    """
    order = {kind: place for place, kind in enumerate(colours)}
    labels = [row["label"] for row in rows]
    placed = [{**row, "place": order[row["kind"]]} for row in rows]
    chart: alt.Chart = (
        alt.Chart(table_of(placed))
        .mark_bar(stroke="var(--page)", strokeWidth=1)
        .encode(
            x=value.stack("zero"),
            y=alt.Y("label:N", sort=None, title=None, axis=alt.Axis(ticks=False)),
            color=kinds(colours),
            order=alt.Order("place:Q"),
            tooltip=list(tooltip),
            description="said:N",
        )
        .properties(
            width="container",
            height=alt.Step(BAR if len({*labels}) < _MANY else _THIN_BAR),
        )
    )
    return chart
