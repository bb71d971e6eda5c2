"""Calls of one module in a row, put in an order that every process finds.

Code that goes through a set of strings (``for kind in set(config.layer_types)``) runs
in an order that hangs on Python's hash seed, which differs from process to process.
Where calls of one module follow each other and none needs another, no order is the
right one: they are sorted by their arguments, so that all processes have one graph.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from partitioner.capture.prune import refs
from partitioner.capture.records import Call, Recording, Ref, SizeReading, SpanRecord
from partitioner.capture.tree import map_tree, relabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["in_fixed_order"]

_ID = re.compile(r"(.*)@(\d+)(.*)")
"""``module path@call number`` and what follows."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One module call: its calls ``start`` to ``end``."""

    path: str
    parent: int | None
    """Number of the span around it."""
    spans: range
    """Numbers of its own span and of those in it; none for a leaf."""
    start: int
    end: int
    arguments: Any

    def key(self) -> str:
        """Return what tells its arguments from those of another call."""
        # Numbers by their size: the second piece of a tensor comes before the tenth.
        return _NUMBER.sub(lambda found: found[0].zfill(20), repr(self.arguments))


def in_fixed_order(recording: Recording) -> Recording:
    """Sort calls of one module that follow each other and are independent.

    Calls that write, draw, check or count keep their order.

    Args:
        recording: All modes and sizes merged. It is left as it is.
    """
    while (found := _first_unsorted(recording)) is not None:
        recording = _reordered(recording, *found)
    return recording


def _first_unsorted(recording: Recording) -> tuple[list[_Block], list[_Block]] | None:
    for run in _runs(recording):
        blocks = sorted(run, key=_Block.key)
        if blocks != run and _independent(recording, run):
            return run, blocks
    return None


def _runs(recording: Recording) -> list[list[_Block]]:
    """Return the runs of two and more calls of one module, side by side."""
    runs: list[list[_Block]] = []
    latest: dict[int | None, list[_Block]] = {}
    for block in sorted(_blocks(recording), key=lambda block: (block.start, block.end)):
        run = latest.get(block.parent)
        if run and (run[-1].path, run[-1].end) == (block.path, block.start):
            run.append(block)
        else:
            latest[block.parent] = [block]
            runs.append(latest[block.parent])
    return [run for run in runs if len(run) > 1]


def _blocks(recording: Recording) -> Iterator[_Block]:
    inner: list[int | None] = [None] * len(recording.calls)
    for number, span in enumerate(recording.spans):
        inner[span.start : span.end] = [number] * (span.end - span.start)
        yield _Block(
            path=span.path,
            parent=span.parent,
            spans=_with_inner(recording.spans, number),
            start=span.start,
            end=span.end,
            arguments=(span.args, span.kwargs),
        )
    for index, call in enumerate(recording.calls):
        if call.kind == "module":
            yield _Block(
                path=str(call.target),
                parent=inner[index],
                spans=range(0),
                start=index,
                end=index + 1,
                arguments=(call.args, call.kwargs),
            )


def _with_inner(spans: Sequence[SpanRecord], number: int) -> range:
    """Return a span's number and those of the spans in it, which follow it."""
    end = number + 1
    while end < len(spans) and _is_in(spans[end], number):
        end += 1
    return range(number, end)


def _is_in(span: SpanRecord, number: int) -> bool:
    return span.parent is not None and span.parent >= number


def _independent(recording: Recording, run: Sequence[_Block]) -> bool:
    return all(
        _is_pure(recording, call) and _reads_none_of(recording, call, run, block)
        for block in run
        for call in recording.calls[block.start : block.end]
    )


def _is_pure(recording: Recording, call: Call) -> bool:
    acts = call.draws or call.checks or call.writes or call.eval_writes
    counts = call.kind == "module" and call.target in recording.counting
    return not (acts or counts or call.kind == "constant")


def _reads_none_of(
    recording: Recording, call: Call, run: Sequence[_Block], own: _Block
) -> bool:
    first, last = run[0].start, run[-1].end
    return all(
        own.start <= ref.call < own.end
        or not first <= ref.call < last
        or recording.calls[ref.call].kind == "weight"
        for ref in refs((call.args, call.kwargs))
    )


def _reordered(
    recording: Recording, run: Sequence[_Block], blocks: Sequence[_Block]
) -> Recording:
    """Put the blocks of a run in another order."""
    order, bounds = _order(recording, run, blocks)
    names = _Names(recording, blocks)
    place = {old: new for new, old in enumerate(order)}
    return replace(
        recording,
        calls=[_moved_call(recording.calls[old], place, names) for old in order],
        spans=_moved_spans(recording, place, names, bounds),
        output=_moved(recording.output, place),
        sizes=SizeReading(),  # read in the order of the recording, and used by now
    )


def _order(
    recording: Recording, run: Sequence[_Block], blocks: Sequence[_Block]
) -> tuple[list[int], dict[int, list[int]]]:
    """Return the calls in their new order, and where the spans of the blocks are then.

    A weight stands before the first call that reads it, as everywhere.
    """
    calls, first, last = recording.calls, run[0].start, run[-1].end
    waiting = {i for i in range(first, last) if calls[i].kind == "weight"}
    order = list(range(first))
    bounds: dict[int, list[int]] = {}
    for block in blocks:
        own = [i for i in range(block.start, block.end) if calls[i].kind != "weight"]
        starts = []
        for index in own:
            starts.append(len(order))
            read = refs((calls[index].args, calls[index].kwargs))
            weights = [w for w in dict.fromkeys(r.call for r in read) if w in waiting]
            waiting.difference_update(weights)
            order += [*weights, index]
        starts.append(len(order))
        for number in block.spans:
            edges = (recording.spans[number].start, recording.spans[number].end)
            bounds[number] = [starts[bisect_left(own, edge)] for edge in edges]
    order += [*sorted(waiting), *range(last, len(calls))]
    return order, bounds


def _moved(tree: Any, place: Mapping[int, int]) -> Any:
    def leaf(value: Any) -> Any:
        return Ref(place[value.call], value.path) if isinstance(value, Ref) else value

    return relabel(tree, lambda value: map_tree(leaf, value))


def _moved_call(call: Call, place: Mapping[int, int], names: _Names) -> Call:
    arguments = {"args": _moved(call.args, place), "kwargs": _moved(call.kwargs, place)}
    return replace(call, id=names.name(call.id), **arguments)


def _moved_spans(
    recording: Recording,
    place: Mapping[int, int],
    names: _Names,
    bounds: Mapping[int, Sequence[int]],
) -> list[SpanRecord]:
    numbers = range(len(recording.spans))
    inside = iter(bounds)
    order = [next(inside) if number in bounds else number for number in numbers]
    new = {old: position for position, old in enumerate(order)}
    found = []
    for old in order:
        span = recording.spans[old]
        start, end = bounds.get(old, (span.start, span.end))
        moved = replace(
            span,
            call=names.number(span.path, span.call),
            start=start,
            end=end,
            args=_moved(span.args, place),
            kwargs=_moved(span.kwargs, place),
            output=_moved(span.output, place),
            parent=None if span.parent is None else new[span.parent],
        )
        found.append(moved)
    return found


class _Names:
    """Counts the module calls of some blocks anew.

    Args:
        recording: What the blocks are part of.
        blocks: In the order in which their calls are counted.
    """

    def __init__(self, recording: Recording, blocks: Sequence[_Block]) -> None:
        old: dict[str, list[int]] = {}
        for block in blocks:
            for path, number in sorted(_module_calls(recording, block)):
                old.setdefault(path, []).append(number)
        self._new = {
            (path, number): new
            for path, numbers in old.items()
            for number, new in zip(numbers, sorted(numbers), strict=True)
        }

    def number(self, path: str, number: int) -> int:
        """Return the new number of a module's call."""
        return self._new.get((path, number), number)

    def name(self, identity: str) -> str:
        """Return the new identity of an operation or of a leaf's call."""
        found = _ID.fullmatch(identity)
        if found is None:
            return identity
        path, number, rest = found.groups()
        return f"{path}@{self.number(path, int(number))}{rest}"


def _module_calls(recording: Recording, block: _Block) -> set[tuple[str, int]]:
    """Return (path, number) of every module call of a block."""
    spans = [recording.spans[number] for number in block.spans]
    found = {(span.path, span.call) for span in spans}
    for call in recording.calls[block.start : block.end]:
        if call.kind == "module" and (match := _ID.fullmatch(call.id)):
            found.add((match[1], int(match[2])))
    return found
