"""What crosses every boundary: each tensor, its bytes, and the line that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.report.html.section import Section
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["section"]


def section(document: Mapping[str, Any]) -> Section:
    """Build the tables."""
    return Section(
        id="boundaries",
        title="What crosses each boundary",
        short="Boundaries",
        context={
            "boundaries": [_boundary(found) for found in document["boundaries"]],
            "ties": document["ties"],
        },
    )


def _boundary(found: Mapping[str, Any]) -> dict[str, Any]:
    stage = found["after_stage"]
    values = found["values"]
    return {
        "before": stage,
        "after": stage + 1,
        "far": found["between_nodes"],
        "bytes": format_bytes(sum(value["bytes"] for value in values)),
        "values": [
            {
                **value,
                "shape": " × ".join(map(str, value["shape"])) or "scalar",
                "size": format_bytes(value["bytes"]),
            }
            for value in values
        ],
    }
