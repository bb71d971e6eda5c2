"""Record the forward in both modes and at second sizes, and make one of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.capture.align import Difference, differing_modules
from partitioner.capture.guards import settle
from partitioner.capture.inputs import forward_error
from partitioner.capture.merge import (
    MismatchError,
    check_sizes,
    merge_modes,
    merge_sizes,
)
from partitioner.capture.operations import LeafNeeded
from partitioner.capture.records import Recording
from partitioner.capture.session import Session
from partitioner.capture.sizes import (
    FreeSize,
    as_recorded,
    candidates,
    size_notes,
)
from partitioner.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from torch import nn

    from partitioner.capture.inputs import Example
    from partitioner.graph import InputSpec
    from partitioner.runtime.guards import SizeGuard

__all__ = ["Takes", "record_all"]


@dataclass(slots=True, kw_only=True)
class Takes:
    """The merged recording and what was learnt on the way."""

    recording: Recording
    inputs: tuple[InputSpec, ...]
    sizes: tuple[FreeSize, ...]
    aliases: dict[str, str]
    configs: tuple[object, ...]
    notes: list[str]
    guards: tuple[SizeGuard, ...]
    device_reads: tuple[str, ...]
    """Where Python asked for the kind of device, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    """A recording whose integers follow the free sizes."""

    sizes: list[FreeSize]
    others: list[Recording]
    """For each free size the recording in which it has its other value."""
    seen: list[list[int]]
    """Every combination of the free sizes that was recorded."""
    recording: Recording


def record_all(
    model: nn.Module,
    example: Example,
    dtype: torch.dtype | None,
    leaf: Iterable[str] = (),
) -> Takes:
    """Record in train and eval mode and at second sizes, and merge.

    Args:
        model: The user's module.
        example: Its inputs.
        dtype: Floating dtype to record in; None keeps the model's.
        leaf: Paths of modules that the user wants to run whole.

    Raises:
        ForwardError: The forward raised on the example inputs.
        DataDependentError: The root reads values of tensors, or differs by mode.
    """
    session = Session(model, example, dtype)
    session.leaves |= {path: f"{path} runs as a whole: asked for" for path in leaf}
    try:
        base, evaluation = _both_modes(session)
    except CaptureError:
        raise
    except Exception as error:
        raise forward_error(model, example, error) from error
    sizes, others = _other_sizes(session, base)
    sized = _merge_sizes(session, base, sizes, others)
    sizes = sized.sizes
    recording = merge_modes(sized.recording, evaluation, [s.value for s in sizes])
    settled = settle(
        (base, evaluation), sized.others, sizes, sized.seen, example.inputs
    )
    return Takes(
        recording=recording,
        inputs=as_recorded(example.inputs, sizes, dtype),
        sizes=tuple(sizes),
        aliases=session.aliases,
        configs=session.configs,
        notes=[
            *example.notes,
            *_notes(session, base, evaluation, sizes),
            *settled.notes,
        ],
        guards=settled.guards,
        device_reads=(*base.device_reads, *evaluation.device_reads),
    )


def _both_modes(session: Session) -> tuple[Recording, Recording]:
    """Record train and eval mode; modules that differ in structure become leaves."""
    while True:
        train = session.record(training=True)
        leaves = len(session.leaves)
        evaluation = session.record(training=False)
        if leaves != len(session.leaves):
            continue
        try:
            merge_modes(train.copy(), evaluation)
        except MismatchError as mismatch:
            for needed in _modes_differ(train, evaluation, mismatch):
                session.require_leaf(needed)
        if leaves == len(session.leaves):
            return train, evaluation


def _modes_differ(
    train: Recording, evaluation: Recording, mismatch: MismatchError
) -> list[LeafNeeded]:
    """Ask for every module whose own code differs by mode to become a leaf.

    All at once, since each may cost a recording: a vision model leaves out dozens of
    blocks by chance. Where only arguments differ, the innermost call around them.
    """
    found = differing_modules(train, evaluation)
    if not found:
        inner = ""
        for span in train.spans:
            if span.start <= mismatch.position < span.end:
                inner = span.path
        found = {inner: Difference(mismatch.reason, mismatch.source)}
    hint = "move the part that differs into a submodule of its own"
    return [
        LeafNeeded(path, f"train and eval mode differ: {how.reason}", how.source, hint)
        for path, how in found.items()
    ]


def _other_sizes(
    session: Session, base: Recording
) -> tuple[list[FreeSize], list[Recording]]:
    """Record once per size with that size changed; keep what can vary."""
    found = []
    for size in candidates(session.example.inputs):
        notes = len(session.notes)
        pair = _try_size(session, base, size)
        if pair is None and size.fallback is not None:
            pair = _try_size(session, base, replace(size, other=size.fallback))
            del session.notes[notes : notes + 1]  # the last word counts
        if pair is not None:
            found.append(pair)
    return [size for size, _ in found], [recording for _, recording in found]


def _try_size(
    session: Session, base: Recording, size: FreeSize
) -> tuple[FreeSize, Recording] | None:
    try:
        other = session.record_at(_shapes(session, [(size, size.other)]))
        merge_sizes(base.copy(), [other], [size])
    except (LeafNeeded, Exception) as error:
        _note_fixed(session, size, error)
        return None
    return size, other


def _note_fixed(session: Session, size: FreeSize, error: BaseException) -> None:
    reason = str(error).splitlines()[0] if str(error) else repr(error)
    text = size.describe(session.example.inputs)
    session.notes.append(f"fixed: {text}: {reason[:160]}")


def _shapes(
    session: Session, sizes: Iterable[tuple[FreeSize, int]]
) -> list[tuple[int, ...]]:
    shapes = [list(spec.shape) for spec in session.example.inputs]
    for size, value in sizes:
        for index, dim in size.dims:
            shapes[index][dim] = value
    return [tuple(shape) for shape in shapes]


def _merge_sizes(
    session: Session,
    base: Recording,
    sizes: list[FreeSize],
    others: list[Recording],
) -> _Sized:
    """Merge, and check at larger sizes; give up sizes until it fits."""
    while True:
        checked: list[int] = []
        found = _try_all(session, base, sizes, others, checked)
        if isinstance(found, Recording):
            seen = _seen(sizes, checked)
            session.notes += size_notes(session.example.inputs, sizes, seen)
            return _Sized(sizes=sizes, others=others, seen=seen, recording=found)
        wrong = len(sizes) - 1 if found.size is None else found.size
        _note_fixed(session, sizes[wrong], found)
        sizes = [size for k, size in enumerate(sizes) if k != wrong]
        others = [other for k, other in enumerate(others) if k != wrong]


def _seen(sizes: Sequence[FreeSize], checked: list[int]) -> list[list[int]]:
    values = [size.value for size in sizes]
    changed = [
        [*values[:k], size.other, *values[k + 1 :]] for k, size in enumerate(sizes)
    ]
    return [values, *changed, checked or values]


def _try_all(
    session: Session,
    base: Recording,
    sizes: list[FreeSize],
    others: list[Recording],
    checked: list[int],
) -> Recording | MismatchError:
    try:
        merged = merge_sizes(base.copy(), others, sizes)
        checked += _check_larger(session, merged, sizes)
    except MismatchError as mismatch:
        return mismatch
    return merged


def _check_larger(
    session: Session, merged: Recording, sizes: Sequence[FreeSize]
) -> list[int]:
    """Check the expressions with all sizes changed at once, larger if the model can.

    Returns:
        The sizes of that recording; none if the model takes no such sizes.

    Raises:
        MismatchError: An expression gives another integer than was recorded.
    """
    if not sizes:
        return []
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
        return session.record_at(_shapes(session, sizes))
    except (LeafNeeded, Exception):
        return None


def _notes(
    session: Session,
    base: Recording,
    evaluation: Recording,
    sizes: Sequence[FreeSize],
) -> list[str]:
    notes = [*session.leaf_notes(), *base.notes, *evaluation.notes, *session.notes]
    if session.configs:
        notes.append(
            "key/value caches are switched off (use_cache=False) while the model runs"
        )
    for size in sizes:
        if len(size.dims) > 1 and size.dims[0][1] > 0:
            text = size.describe(session.example.inputs)
            notes.append(f"equal sizes are taken to follow each other: {text}")
    return notes
