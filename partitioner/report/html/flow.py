"""A box's children and flows → rows from top to bottom, and lanes beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Cut", "arranged", "edges_of"]

_OUTSIDE = -1
_MOST_LANES = 6
"""Lanes that a flow which passes rows may run in; further ones share the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The boundary between two stages, where it lies between two rows."""

    before: int
    """The stage before it."""


def arranged(item: Mapping[str, Any]) -> list[list[int] | Cut]:
    """Put children in rows, so that data flows down, with the cuts between them.

    Args:
        item: A box of an outline.

    Returns:
        Rows of positions among the children; a cut stands between the rows of two
        stages if every box above it is before it, and every box below is after.
    """
    children = item["children"]
    spans = _stages(item)
    level = _levels(item, spans)
    rows: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for child in range(len(children)):
        rows[level[child]].append(child)
    shown: list[list[int] | Cut] = []
    for place, row in enumerate(rows):
        shown.append(row)
        last = max(spans[i][1] for above in rows[: place + 1] for i in above)
        below = [spans[i][0] for after in rows[place + 1 :] for i in after]
        shown += [Cut(before=stage) for stage in range(last, min(below, default=last))]
    return shown


def _stages(item: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return first and last stage of every child; an input's is its reader's."""
    children = item["children"]
    readers: dict[int, list[int]] = {}
    for flow in item["flows"]:
        if flow["from"] != _OUTSIDE and flow["to"] != _OUTSIDE:
            stages = children[flow["to"]]["stages"]
            readers.setdefault(flow["from"], []).append(min(stages, default=0))
    found = []
    for place, child in enumerate(children):
        stages = child["stages"] or [min(readers.get(place, [0]))]
        found.append((min(stages), max(stages)))
    return found


def _levels(item: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the row of every child: below what it reads, and below earlier stages."""
    before: dict[int, list[int]] = {}
    for flow in item["flows"]:
        if "tie" not in flow and flow["from"] != _OUTSIDE:
            before.setdefault(flow["to"], []).append(flow["from"])
    level: dict[int, int] = {}
    order = sorted(range(len(spans)), key=lambda i: (sum(spans[i]), i))
    ended: dict[int, int] = {}
    for child in order:
        first, last = spans[child]
        rows = [level[i] + 1 for i in before.get(child, ()) if i in level]
        rows += [row + 1 for stage, row in ended.items() if stage < first]
        level[child] = max(rows, default=0)
        ended[last] = max(ended.get(last, 0), level[child])
    return [level[child] for child in range(len(spans))]


def edges_of(
    item: Mapping[str, Any], shown: Sequence[list[int] | Cut]
) -> tuple[list[list[Any]], int]:
    """Give every flow that passes rows a lane beside them.

    Args:
        item: A box of an outline.
        shown: What :func:`arranged` returns.

    Returns:
        For each flow [from, to, lane, flow] (lane 0: straight down), and the number
        of lanes.
    """
    rows = [row for row in shown if isinstance(row, list)]
    row_of = {child: place for place, row in enumerate(rows) for child in row}
    edges: list[list[Any]] = []
    taken: list[int] = []  # the last row that each lane is used down to
    ends = [
        (_row(f["from"], row_of, -1), _row(f["to"], row_of, len(rows)), f)
        for f in item["flows"]
    ]
    for start, end, flow in sorted(ends, key=lambda found: sorted(found[:2])):
        lane = 0
        if end - start != 1:
            top, bottom = sorted((start, end))
            free = [i for i, until in enumerate(taken) if until <= top]
            lane = free[0] if free else min(len(taken), _MOST_LANES - 1)
            if lane == len(taken):
                taken.append(bottom)
            taken[lane] = max(taken[lane], bottom)
            lane += 1
        edges.append([flow["from"], flow["to"], lane, flow])
    return edges, len(taken)


def _row(child: int, row_of: Mapping[int, int], outside: int) -> int:
    return outside if child == _OUTSIDE else row_of[child]
