"""What Python decided by sizes → guards in terms of the inputs' free sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.capture.polynomials import lower_bound, polynomial
from partitioner.capture.records import DroppedRef
from partitioner.capture.sizes import SizeExpr, fit
from partitioner.runtime.guards import RELATIONS, SizeGuard, sizes_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.capture.records import Decision, Recording, Ref
    from partitioner.capture.sizes import FreeSize
    from partitioner.graph import InputSpec

__all__ = ["Guards", "settle"]

OPPOSITE = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">": "<=", ">=": "<"}
SWAPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
LISTED = 3
"""Lines that a note names."""


class _UnknownError(Exception):
    """A size was read that follows the inputs' sizes in no known way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What must hold of the free sizes, and what could not be made a guard."""

    guards: tuple[SizeGuard, ...]
    notes: tuple[str, ...]


def settle(
    recordings: Sequence[Recording],
    others: Sequence[Recording],
    sizes: Sequence[FreeSize],
    seen: Sequence[Sequence[int]],
    inputs: Sequence[InputSpec],
) -> Guards:
    """Return the guards of recordings that were made at the example's sizes.

    Args:
        recordings: Train and eval mode; they have the same calls.
        others: For each free size the recording in which it has its other value.
        sizes: The free sizes.
        seen: Every combination of the free sizes that was recorded.
        inputs: The inputs, whose names the text of a guard uses.
    """
    names = [
        f"{inputs[size.dims[0][0]].name}.size({size.dims[0][1]})" for size in sizes
    ]
    found: list[SizeGuard] = []
    notes: dict[str, dict[str, None]] = {}
    for recording in recordings:
        reader = _Reader(recording, others, sizes)
        for decision in recording.sizes.decisions:
            try:
                guard = _guard(decision, reader, names)
            except _UnknownError:
                notes.setdefault(UNKNOWN, {})[decision.source] = None
                continue
            if not guard.sizes():
                continue
            if all(guard.holds(values) for values in seen):
                found.append(guard)
            elif not decision.rounded:  # what follows from a rounding is recorded
                where = f"{guard.source} ({guard.text})"
                notes.setdefault(BOTH_WAYS, {})[where] = None
        for source in _escaped(recording, reader):
            notes.setdefault(ESCAPED, {})[source] = None
    kept = tuple(_distinct(found))
    return Guards(guards=kept, notes=tuple(_texts(notes)))


UNKNOWN = (
    "sizes: Python compares sizes that follow the inputs' in no known way, which is "
    "not checked for a batch, at "
)
BOTH_WAYS = (
    "sizes: Python decided either way in the recordings, with the same operations, so "
    "it is not checked for a batch: "
)
ESCAPED = (
    "sizes: Python takes a size as a plain number (int, float, len or a key), whose "
    "later use is not checked for a batch, at "
)


def _texts(notes: dict[str, dict[str, None]]) -> Iterator[str]:
    for text, found in notes.items():
        places = list(found)
        more = len(places) - LISTED
        tail = f" and {more} more" if more > 0 else ""
        yield text + ", ".join(places[:LISTED]) + tail


class _Reader:
    """Says which expression of the free sizes each read of a recording is."""

    def __init__(
        self,
        recording: Recording,
        others: Sequence[Recording],
        sizes: Sequence[FreeSize],
    ) -> None:
        self.recordings, self.sizes = (recording, *others), sizes
        self.reads = recording.sizes.reads
        self._known: dict[int, Any] = {}

    def resolve(self, expression: Any) -> Any:
        """Return an expression with its reads replaced.

        Raises:
            _UnknownError: One of them follows the sizes in no known way.
        """
        if not isinstance(expression, tuple):
            return expression
        head, *parts = expression
        if head != "read":
            return (head, *map(self.resolve, parts))
        number = parts[0]
        if number not in self._known:
            self._known[number] = self._fitted(*self.reads[number])
        if self._known[number] is None:
            raise _UnknownError
        return self._known[number]

    def may_vary(self, expression: Any) -> bool:
        """Whether an expression may follow a free size."""
        try:
            return bool(sizes_in(self.resolve(expression)))
        except _UnknownError:
            return True

    def _fitted(self, ref: Ref | DroppedRef, dim: int) -> Any:
        values = [_size(recording, ref, dim) for recording in self.recordings]
        base, *rest = values
        if base is None or None in rest:
            return None
        if all(value == base for value in rest):
            return base
        found = fit(base, [value for value in rest if value is not None], self.sizes)
        return None if found is None else _plain(found)


def _size(recording: Recording, ref: Ref | DroppedRef, dim: int) -> int | None:
    if isinstance(ref, DroppedRef):
        shape = recording.dropped_shapes.get(ref, ())
    else:
        outputs = recording.calls[ref.call].outputs
        shape = next((meta.shape for path, meta in outputs if path == ref.path), ())
    return shape[dim] if dim < len(shape) else None


def _plain(found: SizeExpr) -> Any:
    """Return a fitted expression in the form that guards have."""
    total: Any = 0
    for coefficient, factors in found.terms:
        term: Any = coefficient
        for factor in factors:
            size = ("size", factor)
            term = size if term == 1 else ("*", term, size)
        total = term if total == 0 else ("+", total, term)
    if found.offset:
        sign = "+" if found.offset > 0 else "-"
        total = (sign, total, abs(found.offset))
    return total if found.divisor == 1 else ("//", total, found.divisor)


def _guard(decision: Decision, reader: _Reader, names: Sequence[str]) -> SizeGuard:
    relation = decision.relation if decision.outcome else OPPOSITE[decision.relation]
    left, right = reader.resolve(decision.left), reader.resolve(decision.right)
    if not sizes_in(left):
        relation, left, right = SWAPPED[relation], right, left
    return SizeGuard(
        relation=relation,
        left=left,
        right=right,
        text=f"{_text(left, names)} {relation} {_text(right, names)}",
        module=decision.module,
        source=decision.source,
    )


def _text(expression: Any, names: Sequence[str]) -> str:
    if not isinstance(expression, tuple):
        return str(expression)
    head, *parts = expression
    if head == "size":
        return names[parts[0]]
    texts = [_text(part, names) for part in parts]
    if head == "loops":
        return f"len(range({', '.join(texts)}))"
    if head.isalpha():
        return f"{head}({', '.join(texts)})"
    nested = [
        f"({text})" if isinstance(part, tuple) and not part[0].isalpha() else text
        for part, text in zip(parts, texts, strict=True)
    ]
    return f" {head} ".join(nested)


def _escaped(recording: Recording, reader: _Reader) -> Iterator[str]:
    for source, expression in recording.sizes.escapes.items():
        if reader.may_vary(expression):
            yield source


def _distinct(guards: Sequence[SizeGuard]) -> Iterator[SizeGuard]:
    """Yield each guard once; none that sizes of 1 and more cannot break.

    Of bounds on one polynomial the tightest is kept.
    """
    tightest: dict[Any, tuple[float, SizeGuard]] = {}
    for guard in guards:
        difference = polynomial(("-", guard.left, guard.right))
        if _always(guard.relation, difference):
            continue
        constant = difference.pop((), 0)
        key = (frozenset(difference.items()), guard.relation)
        if guard.relation in {"==", "!="}:
            key = (*key, constant)  # type: ignore[assignment]
        # The polynomial is at most, or at least, minus the constant.
        tight = -constant if guard.relation in {">", ">="} else constant
        if key not in tightest or tightest[key][0] < tight:
            tightest[key] = (tight, guard)
    for _, guard in tightest.values():
        yield guard


def _always(relation: str, difference: Any) -> bool:
    """Whether ``difference relation 0`` holds for every size."""
    low, negated_low = lower_bound(difference), lower_bound(difference, -1)
    if relation == "!=":
        return low > 0 or negated_low > 0
    if relation == "==":
        return not difference
    low = low if relation in {">", ">="} else negated_low
    return RELATIONS[">=" if relation in {"<=", ">="} else ">"](low, 0)
