"""Integers that follow one size rounded down: which of those that fit it is.

Strided layers, one after another, are one floor division: ``(size + offset) //
divisor`` (nested floors: Graham, Knuth, Patashnik, *Concrete Mathematics*, 3.11). Many
fit a few recorded sizes. More sizes are recorded, each of which tells about half of
those that are left from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from partitioner.capture.divisions import best_split
from partitioner.capture.merge import check_sizes
from partitioner.capture.sizes import SizeExpr
from partitioner.capture.structure import MismatchError, compare_structure
from partitioner.capture.tree import map_tree

if TYPE_CHECKING:
    from partitioner.capture.records import Recording

__all__ = ["pin_divisions"]

MAX_PROBES = 24
MAX_REFUSED = 4
"""Sizes at which the model takes other paths, after which there is no more looking."""
Record = Callable[[Sequence[int]], "Recording | None"]


def pin_divisions(merged: Recording, seen: list[list[int]], record: Record) -> None:
    """Record at more sizes until one division is left for every rounded integer.

    Args:
        merged: Recording with expressions of sizes, which are corrected.
        seen: Combinations of free sizes that it agrees with, the example's first.
        record: Records at other free sizes; None if the model does not take them.

    Raises:
        MismatchError: Some integer follows its size in another way.
    """
    refused: set[tuple[int, int]] = set()
    probe = _next_probe(merged, seen, refused)
    for _ in range(MAX_PROBES):
        if probe is None:
            return
        if len(refused) > MAX_REFUSED:
            break
        number, value = probe
        values = [*seen[0][:number], value, *seen[0][number + 1 :]]
        recording = record(values)
        if recording is None or not _is_alike(merged, recording):
            refused.add(probe)  # another path through the model: no evidence
        else:
            check_sizes(merged, recording, values, seen=seen)
            seen.append(values)
        probe = _next_probe(merged, seen, refused)
    if probe is not None:
        text = "an integer is rounded in an unknown way"
        raise MismatchError(text, 0, "", size=probe[0])


def _is_alike(first: Recording, second: Recording) -> bool:
    """Whether two recordings differ in nothing but arguments."""
    try:
        compare_structure(first, second)
    except MismatchError:
        return False
    return True


def _rounded(recording: Recording) -> list[SizeExpr]:
    """Return the different divisions among all arguments."""
    found: dict[SizeExpr, None] = {}

    def note(value: Any) -> Any:
        if isinstance(value, SizeExpr) and value.divisor != 1:
            found[value] = None
        return value

    for call in recording.calls:
        map_tree(note, (call.args, call.kwargs))
    for span in recording.spans:
        map_tree(note, (span.args, span.kwargs))
    return list(found)


def _next_probe(
    merged: Recording, seen: Sequence[Sequence[int]], refused: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return (number of a free size, value) that tells most; None if nothing does."""
    for expression in _rounded(merged):
        number = expression.terms[0][1][0]
        samples = {sizes[number]: expression.evaluate(sizes) for sizes in seen}
        taken = {value for k, value in refused if k == number} | set(samples)
        value = best_split(tuple(samples.items()), taken)
        if value is not None:
            return number, value
    return None
