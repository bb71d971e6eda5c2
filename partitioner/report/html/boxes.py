"""An outline → the nested boxes that the template draws, equal ones written once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from partitioner.report.html.flow import Cut, arranged, edges_of
from partitioner.report.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Boxes"]

_OUTSIDE = -1
_OPEN = 60
"""Boxes that are shown at first; what is cut is opened down to them."""


class Boxes:
    """Boxes of one outline.

    A large model repeats its layers. What is inside boxes that are alike is written
    once, as a template that the page's script puts in when a box is opened.
    """

    def __init__(
        self, outline: Mapping[str, Any], crossing: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Read an outline.

        Args:
            outline: What ``plan_outline.outline`` returns.
            crossing: Stage → what crosses the boundary after it, ready to be shown.
        """
        self.crossing = crossing
        self.whole_s = _time_s(outline) or 1.0
        self._drawn = Counter(cut.before for cut in _cuts(outline))
        self._shape_of: dict[int, str] = {}
        self._shape(outline)
        self._count = Counter(self._shape_of.values())
        self._opened = self._opened_at_first(outline)
        self.templates: dict[str, dict[str, Any]] = {}
        """Insides that several boxes share, by their name."""
        self.root = self._inside(outline)

    def _shape(self, item: Mapping[str, Any]) -> str:
        """Name all that is inside a box; boxes with one name are alike inside."""
        facts = {
            **item,
            "name": None,
            "stages": None,
            "children": [
                (child["name"], _shown_stages(child, item), self._shape(child))
                for child in item["children"]
            ],
        }
        text = json.dumps(facts, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        self._shape_of[id(item)] = name
        return name

    def _opened_at_first(self, outline: Mapping[str, Any]) -> set[int]:
        """Return the boxes to open: what a cut goes through, from the outside in."""
        opened: set[int] = set()
        shown = len(outline["children"])
        waiting = deque(outline["children"])
        while waiting:
            item = waiting.popleft()
            if not item["children"] or min(item["stages"]) == max(item["stages"]):
                continue
            shown += len(item["children"])
            if shown > _OPEN:
                break
            opened.add(id(item))
            waiting.extend(item["children"])
        return opened

    def _box(
        self, item: Mapping[str, Any], around: Mapping[str, Any]
    ) -> dict[str, Any]:
        shape = self._shape_of[id(item)]
        shared = self._count[shape] > 1 and bool(item["children"])
        if shared and shape not in self.templates:
            self.templates[shape] = {}  # its own insides may be alike, never itself
            self.templates[shape] = self._inside(item)
        time_s = _time_s(item)
        return {
            "name": item["name"],
            "type": item["kind"],
            "kind": item["box"],
            "stages": _shown_stages(item, around),
            "recomputed": _recomputed(item, around),
            "ties": item["ties"],
            "time": format_seconds(time_s) if time_s else "",
            "share": round(time_s / self.whole_s, 4),
            "open": id(item) in self._opened,
            "shape": shape if shared else "",
            "inside": None if shared else self._inside(item),
        }

    def _inside(self, item: Mapping[str, Any]) -> dict[str, Any]:
        rows = arranged(item)
        edges, lanes = edges_of(item, rows)
        return {
            "facts": list(self._facts(item)),
            "rows": [self._shown_row(row, item) for row in rows],
            "edges": [_edge(edge, edges) for edge in edges],
            "lanes": lanes,
            "words": [_words(edge[3], item) for edge in edges],
        }

    def _shown_row(
        self, row: list[int] | Cut, item: Mapping[str, Any]
    ) -> dict[str, Any]:
        if isinstance(row, Cut):
            # Where branches are cut apart the boundary is drawn in each of them.
            part = self._drawn[row.before] > 1
            return {"cut": {**self.crossing[row.before], "part": part}}
        boxes = [(child, self._box(item["children"][child], item)) for child in row]
        return {"boxes": boxes}

    def _facts(self, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if item["box"] == "input":
            return
        yield "forward", format_seconds(item["forward_s"])
        yield "backward", format_seconds(item["backward_s"])
        yield "of the model's time", format_share(_time_s(item) / self.whole_s)
        flops = item["forward_flops"] + item["backward_flops"]
        if flops:
            yield "work", format_flops(flops)
        if item["parameters"]:
            yield "parameters", format_count(item["parameters"])
        if item["saved_bytes"]:
            yield "saved for backward", format_bytes(item["saved_bytes"])
        if item["ties"]:
            yield "tied", ", ".join(item["ties"])
        if item["source"]:
            yield "source", item["source"]


def _cuts(item: Mapping[str, Any]) -> Iterator[Cut]:
    """Yield the boundaries that are drawn in a box and in what is inside it."""
    yield from (row for row in arranged(item) if isinstance(row, Cut))
    for child in item["children"]:
        yield from _cuts(child)


def _time_s(item: Mapping[str, Any]) -> float:
    return float(item["forward_s"] + item["backward_s"])


def _shown_stages(item: Mapping[str, Any], around: Mapping[str, Any]) -> list[int]:
    """Return a box's stages, unless all around it is on the same one."""
    one = len(around["stages"]) == 1 and item["stages"] == around["stages"]
    return [] if one else list(item["stages"])


def _recomputed(item: Mapping[str, Any], around: Mapping[str, Any]) -> str:
    """Say what of a box is recomputed, unless the box around it says so."""
    share = item["recomputed"]
    if not share or around["recomputed"] == 1:
        return ""
    return "recomputed" if share == 1 else "partly recomputed"


def _edge(edge: Sequence[Any], edges: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what the script draws: ends, lane, kind and label.

    The first lane into a box has the bytes of all lanes into it that cross.
    """
    start, end, lane, flow = edge
    if "tie" in flow:
        return [start, end, lane, "tie", ""]
    if not flow["crossing_bytes"]:
        return [start, end, lane, "data", ""]
    beside = [
        other
        for _, into, in_lane, other in edges
        if into == end and in_lane and other.get("crossing_bytes")
    ]
    sizes = [format_bytes(other["crossing_bytes"]) for other in beside]
    label = " + ".join(sizes) if beside and flow is beside[0] else ""
    return [start, end, lane, "crossing", label]


def _words(flow: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    """Say a flow in words, for readers who do not see the lines."""
    names = [
        "outside" if flow[end] == _OUTSIDE else item["children"][flow[end]]["name"]
        for end in ("from", "to")
    ]
    if "tie" in flow:
        return f"{names[0]} and {names[1]} share {flow['tie']}"
    crosses = flow["crossing_bytes"]
    after = f", {format_bytes(crosses)} to a later stage" if crosses else ""
    return f"{names[0]} to {names[1]}: {format_bytes(flow['bytes'])}{after}"
