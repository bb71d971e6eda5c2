"""Record eval mode with every size changed at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.capture.identities import as_in_train_mode
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.sizes import FreeSize, candidates
from partitioner.capture.structure import compare_structure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partitioner.capture.records import Recording
    from partitioner.capture.session import Session

__all__ = ["Together", "record_together", "resized_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """A recording in eval mode with every size that may be free changed.

    To sizes that are not round: eval mode is seen at no others, and a constant of its
    own that equals one (a limit of positions) would look as if it followed the size.
    """

    recording: Recording
    sizes: tuple[FreeSize, ...]

    def covers(self, sizes: Sequence[FreeSize]) -> bool:
        """Whether these are the sizes that were changed."""
        return [size.dims for size in sizes] == [size.dims for size in self.sizes]

    def as_at(self, train: Recording) -> Recording:
        """Return what eval mode decided and said, with the shapes of train mode."""
        found = self.recording
        return replace(
            train,
            sizes=found.sizes,
            notes=found.notes,
            device_reads=found.device_reads,
        )

    @property
    def values(self) -> list[int]:
        """The changed sizes."""
        return [size.unround for size in self.sizes]


def resized_shapes(
    session: Session, sizes: Iterable[tuple[FreeSize, int]]
) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs, with some sizes changed."""
    shapes = [list(spec.shape) for spec in session.example.inputs]
    for size, value in sizes:
        for index, dim in size.dims:
            shapes[index][dim] = value
    return [tuple(shape) for shape in shapes]


def record_together(session: Session, train: Recording) -> Together | None:
    """Record eval mode with every size changed at once.

    Returns:
        None if the model takes no such sizes, or runs other operations then.
    """
    sizes = candidates(session.example.inputs)
    if not sizes:
        return None
    try:
        shapes = resized_shapes(session, [(size, size.unround) for size in sizes])
        recording = session.record_at(shapes, training=False)
        recording = as_in_train_mode(train, recording, session.model)
        compare_structure(train, recording)
    except (LeafNeeded, Exception):
        return None
    return Together(recording=recording, sizes=tuple(sizes))
