"""Several recordings → one: what differs by mode or by size becomes an expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partitioner.capture.records import Call, DeviceRef, Recording, Ref, SpanRecord
from partitioner.capture.sizes import FreeSize, SizeExpr, fit, refit
from partitioner.capture.structure import MismatchError, compare_structure
from partitioner.capture.tree import is_plain, map_tree, tensor_paths

__all__ = [
    "ByMode",
    "check_sizes",
    "merge_modes",
    "merge_sizes",
]


@dataclass(frozen=True, slots=True)
class ByMode:
    """An argument that depends on the running module's ``training`` flag."""

    train: Any
    eval: Any


Combine = Callable[[Sequence[Any], Call | SpanRecord, int], Any]


_LEAVES = frozenset((type(None), bool, int, float, str, Ref))
"""What nearly all arguments are."""


def _merge_trees(
    trees: Sequence[Any], where: Call | SpanRecord, position: int, combine: Combine
) -> Any:
    """Merge trees of one structure, asking ``combine`` at leaves that differ."""
    first = trees[0]
    if type(first) in _LEAVES and all(
        type(tree) is type(first) and tree == first for tree in trees
    ):
        return first
    kinds = {type(tree) for tree in trees}
    source = getattr(where, "source", "")
    if len(kinds) == 1 and isinstance(first, (tuple, list)):
        if len({len(tree) for tree in trees}) > 1:
            raise MismatchError("an argument has another length", position, source)
        items = [
            _merge_trees(parts, where, position, combine)
            for parts in zip(*trees, strict=True)
        ]
        return _like(first, items)
    if len(kinds) == 1 and isinstance(first, dict):
        if len({tuple(tree) for tree in trees}) > 1:
            raise MismatchError("an argument has other keys", position, source)
        return {
            key: _merge_trees([t[key] for t in trees], where, position, combine)
            for key in first
        }
    if len(kinds) == 1 and isinstance(first, slice):
        parts = [(tree.start, tree.stop, tree.step) for tree in trees]
        return slice(*_merge_trees(parts, where, position, combine))
    if all(_equal(first, tree) for tree in trees[1:]):
        return first
    return combine(trees, where, position)


def _like(first: Any, items: list[Any]) -> Any:
    if isinstance(first, list):
        return items
    if hasattr(first, "_fields"):
        return type(first)(*items)
    return tuple(items)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if type(a) is not type(b):
        return False
    # A user's object (a dataclass of tensors) may have no plain answer to ==. It can
    # only be an argument of a module call that is never called whole.
    comparable = is_plain(a) or isinstance(a, (Ref, DeviceRef, SizeExpr, ByMode))
    return not comparable or bool(a == b)


def _merge(recordings: Sequence[Recording], combine: Combine) -> Recording:
    """Return the first recording with merged arguments; unchanged on a mismatch."""
    base = recordings[0]
    for other in recordings[1:]:
        compare_structure(base, other)
    merged: list[tuple[Call | SpanRecord, Any]] = []
    for index, group in enumerate(zip(*(r.calls for r in recordings), strict=True)):
        trees = [(call.args, call.kwargs) for call in group]
        merged.append((group[0], _merge_trees(trees, group[0], index, combine)))
    for spans in zip(*(r.spans for r in recordings), strict=True):
        trees = [(span.args, span.kwargs) for span in spans]
        start = spans[0].start
        merged.append((spans[0], _merge_trees(trees, spans[0], start, combine)))
    for where, (args, kwargs) in merged:
        where.args, where.kwargs = args, kwargs
    return base


def merge_modes(
    train: Recording, evaluation: Recording, sizes: Sequence[int] = ()
) -> Recording:
    """Merge a train-mode and an eval-mode recording into the first.

    Args:
        train: May hold expressions of sizes already.
        evaluation: Recorded at the example's sizes.
        sizes: The example's free sizes.

    Raises:
        MismatchError: They differ in operations, not only in plain arguments.
    """

    def combine(values: Sequence[Any], where: Any, position: int) -> Any:
        source = getattr(where, "source", "")
        if _equal(evaluate_sizes(values[0], sizes), values[1]):
            return values[0]
        if any(isinstance(value, (Ref, tuple, list, dict)) for value in values):
            raise MismatchError("an operand differs", position, source)
        return ByMode(values[0], values[1])

    merged = _merge([train, evaluation], combine)
    merged.counting = train.counting | evaluation.counting
    for span, other_span in zip(merged.spans, evaluation.spans, strict=True):
        if tensor_paths(span.output) != tensor_paths(other_span.output):
            span.opened_because = "it returns something else in eval mode"
        span.opened_because = span.opened_because or other_span.opened_because
    for call, other in zip(merged.calls, evaluation.calls, strict=True):
        call.draws |= other.draws
        call.differentiates |= other.differentiates
        call.eval_storages = tuple(meta.storage for _, meta in other.outputs)
        call.eval_writes = other.writes
    return merged


def merge_sizes(
    base: Recording, others: Sequence[Recording], sizes: Sequence[FreeSize]
) -> Recording:
    """Merge recordings at other sizes (one per free size) into the first.

    Integers that differ become :class:`SizeExpr`; dimensions that differ are marked
    as varying.

    Raises:
        MismatchError: Something other than integers differs, or no expression fits.
    """

    def combine(values: Sequence[Any], where: Any, position: int) -> Any:
        source = getattr(where, "source", "")
        if not all(type(value) is int for value in values):
            raise MismatchError(
                "an argument that is no integer differs", position, source
            )
        found = fit(values[0], values[1:], sizes)
        if found is None:
            text = f"an integer follows the sizes in no known way ({values})"
            raise MismatchError(text, position, source)
        return found

    merged = _merge([base, *others], combine)
    for index, call in enumerate(merged.calls):
        shapes = [[m.shape for _, m in r.calls[index].outputs] for r in (base, *others)]
        call.outputs = [
            (path, replace(meta, varying=_varying([s[k] for s in shapes])))
            for k, (path, meta) in enumerate(call.outputs)
        ]
    return merged


def check_sizes(
    merged: Recording,
    together: Recording,
    sizes: Sequence[int],
    *,
    training: bool = True,
    seen: Sequence[Sequence[int]] = (),
) -> None:
    """Check a merged recording against one at other sizes.

    Args:
        merged: With expressions of sizes; of both modes or of one.
        together: The recording that must agree.
        sizes: Its free sizes.
        training: Its mode.
        seen: If given, the sizes that expressions agree with: divisions that fit these
            and not the others are replaced by one that fits all.

    Raises:
        MismatchError: An expression gives another integer than was recorded.
    """

    def combine(values: Sequence[Any], where: Any, position: int) -> Any:
        expression = values[0]
        if isinstance(expression, ByMode):
            expression = expression.train if training else expression.eval
        if not _equal(evaluate_sizes(expression, sizes), values[1]):
            better = refit(expression, seen, sizes, values[1])
            if better is not None:
                return better
            text = f"an integer follows the sizes in no known way ({values[1]})"
            source = getattr(where, "source", "")
            raise MismatchError(text, position, source, size=_last_size(expression))
        return values[0]

    _merge([merged, together], combine)


def _last_size(expression: Any) -> int | None:
    if not isinstance(expression, SizeExpr):
        return None
    return max(factor for _, factors in expression.terms for factor in factors)


def _varying(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if len({len(shape) for shape in shapes}) > 1:
        raise MismatchError("a tensor has another number of dimensions", 0, "")
    dims = range(len(shapes[0]))
    return tuple(d for d in dims if len({shape[d] for shape in shapes}) > 1)


def evaluate_sizes(tree: Any, sizes: Sequence[int]) -> Any:
    """Return a tree with every :class:`SizeExpr` evaluated."""

    def leaf(value: Any) -> Any:
        return value.evaluate(sizes) if isinstance(value, SizeExpr) else value

    return map_tree(leaf, tree)
