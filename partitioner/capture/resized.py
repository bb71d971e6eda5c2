"""Record the forward at other sizes, and find what follows them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from partitioner.capture.all_sizes import Together, resized_shapes
from partitioner.capture.merge import check_sizes, merge_modes, merge_sizes
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.rounding import pin_divisions
from partitioner.capture.sizes import FreeSize, candidates, size_notes, split
from partitioner.capture.structure import MismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partitioner.capture.records import Recording
    from partitioner.capture.session import Session

__all__ = [
    "Resized",
    "Sized",
    "merged_apart",
    "merged_together",
    "other_sizes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """Train mode at the example's sizes, and with one size changed at a time."""

    train: Recording
    sizes: list[FreeSize]
    others: list[Recording]
    probes: dict[tuple[int, ...], Recording | None] = field(default_factory=dict)
    """Recordings at more sizes; None where the model refuses."""

    def without(self, number: int) -> Resized:
        """Leave out a size, which is fixed."""
        keep = [k for k in range(len(self.sizes)) if k != number]
        return Resized(
            train=self.train,
            sizes=[self.sizes[k] for k in keep],
            others=[self.others[k] for k in keep],
        )

    def merged(self, session: Session) -> Recording:
        """Return one recording, with expressions of the sizes.

        Args:
            session: Records at more sizes where integers are rounded.

        Raises:
            MismatchError: A difference follows no size in a known way.
        """

        def record(values: Sequence[int]) -> Recording | None:
            key = tuple(values)
            if key not in self.probes:
                sized = zip(self.sizes, values, strict=True)
                self.probes[key] = _if_it_can(session, sized)
            return self.probes[key]

        merged = merge_sizes(self.train.copy(), self.others, self.sizes)
        pin_divisions(merged, self._combinations(), record)
        return merged

    def _combinations(self) -> list[list[int]]:
        """Return the sizes of all recordings, the example's first."""
        values = [size.value for size in self.sizes]
        return [
            values,
            *(
                [*values[:k], s.other, *values[k + 1 :]]
                for k, s in enumerate(self.sizes)
            ),
        ]

    def sized(
        self, session: Session, recording: Recording, checked: Sequence[int]
    ) -> Sized:
        """Return the merged recording, and note which sizes were seen.

        Args:
            session: Gets the notes.
            recording: Of both modes.
            checked: The sizes that were recorded together, if there were any.
        """
        seen = self._combinations()
        seen.append(list(checked) or seen[0])
        session.notes += size_notes(session.example.inputs, self.sizes, seen)
        return Sized(
            sizes=self.sizes, others=self.others, seen=seen, recording=recording
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A recording whose integers follow the free sizes."""

    sizes: list[FreeSize]
    others: list[Recording]
    """For each free size the recording in which it has its other value."""
    seen: list[list[int]]
    """Every combination of the free sizes that was recorded."""
    recording: Recording


def other_sizes(session: Session, train: Recording) -> Resized:
    """Record once per size with that size changed; keep what can vary."""
    found = [
        pair
        for size in candidates(session.example.inputs)
        for pair in _varied(session, train, size)
    ]
    return Resized(
        train=train,
        sizes=[size for size, _ in found],
        others=[recording for _, recording in found],
    )


def _varied(
    session: Session, train: Recording, size: FreeSize
) -> list[tuple[FreeSize, Recording]]:
    """Record with a size changed, or with parts of it that were equal by accident."""
    notes = len(session.notes)
    pair = _try_size(session, train, size)
    if pair is None and size.fallback is not None:
        pair = _try_size(session, train, replace(size, other=size.fallback))
        del session.notes[notes : notes + 1]  # the last word counts
    if pair is not None:
        return [pair]
    parts = split(size, session.example.inputs)
    found = [pair for part in parts for pair in _varied(session, train, part)]
    if found:
        del session.notes[notes]  # some of it varies
    else:
        del session.notes[notes + 1 :]
    return found


def _try_size(
    session: Session, base: Recording, size: FreeSize
) -> tuple[FreeSize, Recording] | None:
    try:
        other = session.record_at(resized_shapes(session, [(size, size.other)]))
        merge_sizes(base.copy(), [other], [size])
    except (LeafNeeded, Exception) as error:
        _note_fixed(session, size, error)
        return None
    return size, other


def _note_fixed(session: Session, size: FreeSize, error: BaseException) -> None:
    reason = str(error).splitlines()[0] if str(error) else repr(error)
    text = size.describe(session.example.inputs)
    session.notes.append(f"fixed: {text}: {reason[:160]}")


def merged_together(
    session: Session, resized: Resized, together: Together
) -> Sized | None:
    """Merge all; None if a difference is not explained by the sizes alone."""
    if not together.covers(resized.sizes):
        return None
    try:
        merged = resized.merged(session)
        check_sizes(merged, together.recording, together.values)
        merged = merge_modes(merged, together.recording, together.values)
    except MismatchError:
        return None
    return resized.sized(session, merged, together.values)


def merged_apart(
    session: Session,
    resized: Resized,
    evaluation: Recording,
    together: Together | None,
) -> Sized:
    """Merge, and check at larger sizes; give up sizes until it fits.

    Args:
        session: Records at larger sizes where ``together`` does not do.
        resized: Train mode.
        evaluation: Eval mode at the example's sizes.
        together: Eval mode at other sizes, if there is such a recording.
    """
    while True:
        found = _try_all(session, resized, evaluation, together)
        if not isinstance(found, MismatchError):
            return resized.sized(session, *found)
        wrong = len(resized.sizes) - 1 if found.size is None else found.size
        _note_fixed(session, resized.sizes[wrong], found)
        resized = resized.without(wrong)


def _try_all(
    session: Session,
    resized: Resized,
    evaluation: Recording,
    together: Together | None,
) -> tuple[Recording, list[int]] | MismatchError:
    example = [size.value for size in resized.sizes]
    try:
        merged = merge_modes(resized.merged(session), evaluation, example)
        return merged, _check_larger(session, merged, resized.sizes, together)
    except MismatchError as mismatch:
        return mismatch


def _check_larger(
    session: Session,
    merged: Recording,
    sizes: Sequence[FreeSize],
    together: Together | None,
) -> list[int]:
    """Check the expressions with all sizes changed at once, larger if the model can.

    Returns:
        The sizes of that recording; none if the model takes no such sizes.

    Raises:
        MismatchError: An expression gives another integer than was recorded.
    """
    if not sizes:
        return []
    if together is not None and together.covers(sizes):
        check_sizes(merged, together.recording, together.values, training=False)
        return together.values
    for values in ([s.larger for s in sizes], [s.other for s in sizes]):
        recording = _if_it_can(session, zip(sizes, values, strict=True))
        if recording is not None:
            check_sizes(merged, recording, values)
            return values
    return []


def _if_it_can(
    session: Session, sizes: Iterable[tuple[FreeSize, int]]
) -> Recording | None:
    """Record at these sizes; None if the model does not take them: no fault."""
    try:
        return session.record_at(resized_shapes(session, sizes))
    except (LeafNeeded, Exception):
        return None
