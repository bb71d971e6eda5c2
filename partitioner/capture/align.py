"""Two recordings, module call by module call: the smallest modules that differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from partitioner.capture.identities import is_copy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partitioner.capture.records import Recording, SpanRecord

__all__ = ["Difference", "differing_modules"]

OPERATIONS = ("function", "method", "module")
ROOT = ("", 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """How one module's own code differs, and where."""

    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a module's own code does: an operation or a module call."""

    what: Any
    text: str = field(compare=False)
    source: str = field(compare=False)


def differing_modules(first: Recording, second: Recording) -> dict[str, Difference]:
    """Compare what each module's own code does, whatever the modules in it do.

    Copies do not count: where only they differ, the modes can be merged.

    Args:
        first: One recording.
        second: The same model, recorded in another mode.

    Returns:
        Path of each module that differs → how. Where modules around one another
        differ, the outermost alone.
    """
    others = _steps(second)
    found: dict[str, Difference] = {}
    for key, steps in _steps(first).items():  # outer modules first
        path = key[0]
        if key not in others or path in found or _is_inside(path, found):
            continue
        difference = _difference(steps, others[key])
        if difference is not None:
            found[path] = difference
    return found


def _is_inside(path: str, others: Iterable[str]) -> bool:
    return any(not other or path.startswith(f"{other}.") for other in others)


def _difference(first: list[Step], second: list[Step]) -> Difference | None:
    for a, b in zip_longest(first, second):
        if a is None or b is None:
            extra = a or b
            return Difference(f"{extra.text} runs in only one of them", extra.source)
        if a != b:
            return Difference(f"{a.text} became {b.text}", a.source or b.source)
    return None


def _steps(recording: Recording) -> dict[tuple[str, int], list[Step]]:
    """Return the steps of every module call, by path and number."""
    owners = [ROOT] * len(recording.calls)
    steps: dict[tuple[str, int], list[Step]] = {ROOT: []}
    starts: dict[int, list[SpanRecord]] = {}
    for span in recording.spans:  # outer ones first: what is inside overwrites
        key = (span.path, span.call)
        steps[key] = []
        owners[span.start : span.end] = [key] * (span.end - span.start)
        starts.setdefault(span.start, []).append(span)
    for index in range(len(recording.calls) + 1):
        for span in starts.get(index, ()):
            steps[_parent(recording, span)].append(_module_step(span))
        if index < len(recording.calls):
            call = recording.calls[index]
            if call.kind in OPERATIONS and not is_copy(call, recording):
                name = getattr(call.target, "__name__", call.target)
                step = Step(
                    (call.kind, call.target), f"{name} ({call.id})", call.source
                )
                steps[owners[index]].append(step)
    return steps


def _parent(recording: Recording, span: SpanRecord) -> tuple[str, int]:
    if span.parent is None:
        return ROOT
    parent = recording.spans[span.parent]
    return parent.path, parent.call


def _module_step(span: SpanRecord) -> Step:
    return Step((span.path, span.call), f"the call of {span.path}", "")
