"""Drop what a recording holds in vain: operations without readers or effects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partitioner.capture.records import Call, Recording, Ref
from partitioner.capture.tree import leaves, map_tree, relabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["prune", "refs"]


def prune(recording: Recording) -> Recording:
    """Drop operations without readers or effects (a random draw only Python read)."""
    live = _live_calls(recording)
    number = {old: new for new, old in enumerate(sorted(live))}

    def leaf(value: Any) -> Any:
        return replace(value, call=number[value.call]) if _is_ref(value) else value

    def tree(value: Any) -> Any:
        return map_tree(leaf, value)

    for old in live:
        call = recording.calls[old]
        call.args, call.kwargs = tree(call.args), tree(call.kwargs)
    _renumber_ids([recording.calls[old] for old in sorted(live)])
    bounds = _renumbered_bounds(len(recording.calls), live)
    for span in recording.spans:
        span.start, span.end = bounds[span.start], bounds[span.end]
        span.args, span.kwargs = _known(span.args, number), _known(span.kwargs, number)
        span.output = relabel(span.output, lambda v: _known(v, number))
    return Recording(
        calls=[recording.calls[old] for old in sorted(live)],
        spans=recording.spans,
        output=relabel(recording.output, leaf),
        notes=recording.notes,
        weight_storages=recording.weight_storages,
    )


def _known(tree: Any, number: dict[int, int]) -> Any:
    """Renumber; a dropped value becomes None (only dead results refer to it)."""

    def leaf(value: Any) -> Any:
        if not _is_ref(value):
            return value
        if value.call not in number:
            return None
        return replace(value, call=number[value.call])

    return map_tree(leaf, tree)


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def refs(tree: Any) -> Iterator[Ref]:
    """Yield the references of an argument tree."""
    found: list[Ref] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Ref):
            found.append(value)
        return value

    map_tree(leaf, tree)
    return iter(found)


def _live_calls(recording: Recording) -> set[int]:
    live: set[int] = set()
    waiting = [leaf.call for leaf in leaves(recording.output) if _is_ref(leaf)]
    for index, call in enumerate(recording.calls):
        if call.kind in ("input", "module") or call.writes or call.checks:
            waiting.append(index)
    for span in recording.spans:
        if not span.opened_because:
            waiting += [ref.call for ref in refs((span.args, span.kwargs))]
    while waiting:
        index = waiting.pop()
        if index in live:
            continue
        live.add(index)
        call = recording.calls[index]
        waiting += [ref.call for ref in refs((call.args, call.kwargs))]
    return live


def _renumber_ids(calls: Sequence[Call]) -> None:
    """Count a module call's operations anew: an id depends on live operations only."""
    counts: dict[str, int] = {}
    for call in calls:
        if call.kind in ("function", "method"):
            frame = call.id.rpartition(":")[0]
            number = counts.get(frame, 0)
            counts[frame] = number + 1
            call.id = f"{frame}:{number}"


def _renumbered_bounds(count: int, live: set[int]) -> list[int]:
    bounds, kept = [], 0
    for index in range(count + 1):
        bounds.append(kept)
        kept += index in live
    return bounds
