"""Drop what a recording holds in vain: operations without readers or effects."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from partitioner.capture.records import Call, DroppedRef, Recording, Ref
from partitioner.capture.tree import leaves, map_tree, relabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["prune", "refs"]


def prune(recording: Recording) -> Recording:
    """Drop operations without readers or effects (a random draw only Python read)."""
    live, first_reader = _live_calls(recording)
    order = sorted(live, key=lambda old: (_place(recording, old, first_reader), old))
    number = {old: new for new, old in enumerate(order)}

    dropped = {
        old: call.id for old, call in enumerate(recording.calls) if old not in live
    }

    def leaf(value: Any) -> Any:
        return Ref(number[value.call], value.path) if _is_ref(value) else value

    def read(ref: Ref | DroppedRef) -> Ref | DroppedRef:
        if isinstance(ref, DroppedRef):
            return ref
        known = _known(ref, number)
        return known or DroppedRef(dropped[ref.call], ref.path)

    def tree(value: Any) -> Any:
        return map_tree(leaf, value)

    for old in live:
        call = recording.calls[old]
        call.args, call.kwargs = tree(call.args), tree(call.kwargs)
    _renumber_ids([recording.calls[old] for old in order])
    places = [_place(recording, old, first_reader) for old in order]
    bounds = [bisect_left(places, old) for old in range(len(recording.calls) + 1)]
    for span in recording.spans:
        span.start, span.end = bounds[span.start], bounds[span.end]
        span.args, span.kwargs = _known(span.args, number), _known(span.kwargs, number)
        span.output = relabel(span.output, lambda v: _known(v, number))
    return Recording(
        calls=[recording.calls[old] for old in order],
        spans=recording.spans,
        output=relabel(recording.output, leaf),
        notes=recording.notes,
        counting=recording.counting,
        device_reads=recording.device_reads,
        weight_storages=recording.weight_storages,
        sizes=replace(
            recording.sizes,
            reads=[(read(ref), dim) for ref, dim in recording.sizes.reads],
        ),
        dropped_shapes={
            DroppedRef(name, path): meta.shape
            for old, name in dropped.items()
            for path, meta in recording.calls[old].outputs
        },
    )


def _known(tree: Any, number: dict[int, int]) -> Any:
    """Renumber; a dropped value becomes None (only dead results refer to it)."""

    def leaf(value: Any) -> Any:
        if not _is_ref(value):
            return value
        if value.call not in number:
            return None
        return Ref(number[value.call], value.path)

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


def _place(recording: Recording, index: int, first_reader: Mapping[int, int]) -> int:
    """Return before which call one stands: a weight's first reader may be dropped."""
    if recording.calls[index].kind in ("weight", "constant"):
        return first_reader.get(index, index)
    return index


def _live_calls(recording: Recording) -> tuple[set[int], dict[int, int]]:
    """Return the calls that are not in vain, and the first of those that read each."""
    live: set[int] = set()
    first_reader: dict[int, int] = {}
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
        for ref in refs((call.args, call.kwargs)):
            waiting.append(ref.call)
            first_reader[ref.call] = min(index, first_reader.get(ref.call, index))
    return live, first_reader


def _renumber_ids(calls: Sequence[Call]) -> None:
    """Count a module call's operations anew: an id depends on live operations only."""
    counts: dict[str, int] = {}
    for call in calls:
        if call.kind in ("function", "method"):
            frame = call.id.rpartition(":")[0]
            number = counts.get(frame, 0)
            counts[frame] = number + 1
            call.id = f"{frame}:{number}"
