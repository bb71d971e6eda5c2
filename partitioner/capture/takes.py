"""Record the forward in both modes and at second sizes, and make one of all."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.capture.align import Difference, differing_modules
from partitioner.capture.all_sizes import record_together
from partitioner.capture.guards import settle
from partitioner.capture.identities import as_in_train_mode
from partitioner.capture.inputs import forward_error
from partitioner.capture.merge import merge_modes
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.resized import (
    Sized,
    merged_apart,
    merged_together,
    other_sizes,
)
from partitioner.capture.session import Session
from partitioner.capture.siblings import in_fixed_order
from partitioner.capture.sizes import FreeSize, as_recorded
from partitioner.capture.structure import MismatchError
from partitioner.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from torch import nn

    from partitioner.capture.inputs import Example
    from partitioner.capture.records import Recording
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
class _Found:
    """What was recorded of both modes, and all of it merged."""

    sized: Sized
    train: Recording
    evaluation: Recording


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
        with _without_collector():
            found = _record(session)
    except CaptureError:
        raise
    except Exception as error:
        raise forward_error(model, example, error) from error
    sized, modes = found.sized, (found.train, found.evaluation)
    settled = settle(modes, sized.others, sized.sizes, sized.seen, example.inputs)
    return Takes(
        recording=in_fixed_order(sized.recording),
        inputs=as_recorded(example.inputs, sized.sizes, dtype),
        sizes=tuple(sized.sizes),
        aliases=session.aliases,
        configs=session.configs,
        notes=[
            *example.notes,
            *_notes(session, found),
            *settled.notes,
        ],
        guards=settled.guards,
        device_reads=tuple(read for mode in modes for read in mode.device_reads),
    )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the cycle collector: it walks the growing recordings and frees nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _record(session: Session) -> _Found:
    """Record eval mode at other sizes than train mode; apart only if they differ.

    One recording that differs in mode and in every size shows that nothing but what
    was found to follow the sizes differs. If anything else does, the mode or a size
    may be to blame, and eval mode is recorded at the example's sizes as well.
    """
    train = session.record(training=True)
    together = record_together(session, train)
    if together is None:
        train, evaluation = _both_modes(session, train)
        resized = other_sizes(session, train)
    else:
        resized = other_sizes(session, train)
        sized = merged_together(session, resized, together)
        if sized is not None:
            evaluation = together.as_at(train)
            return _Found(sized=sized, train=train, evaluation=evaluation)
        train, evaluation = _both_modes(session, train)
        if train is not resized.train:  # with more leaves now
            together = None
            session.notes.clear()
            resized = other_sizes(session, train)
    sized = merged_apart(session, resized, evaluation, together)
    return _Found(sized=sized, train=train, evaluation=evaluation)


def _both_modes(session: Session, train: Recording) -> tuple[Recording, Recording]:
    """Record eval mode too; modules that differ in structure become leaves.

    Returns:
        Both recordings; that of train mode is ``train`` unless leaves were found.
    """
    while True:
        leaves = len(session.leaves)
        evaluation = session.record(training=False)
        evaluation = as_in_train_mode(train, evaluation, session.model)
        if leaves == len(session.leaves):
            try:
                merge_modes(train.copy(), evaluation)
            except MismatchError as mismatch:
                for needed in _modes_differ(train, evaluation, mismatch):
                    session.require_leaf(needed)
            else:
                return train, evaluation
        train = session.record(training=True)


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


def _notes(session: Session, found: _Found) -> list[str]:
    notes = [
        *session.leaf_notes(),
        *session.idle_notes(),
        *found.train.notes,
        *found.evaluation.notes,
        *session.notes,
    ]
    if session.configs:
        notes.append(
            "key/value caches are switched off (use_cache=False) while the model runs"
        )
    for size in found.sized.sizes:
        if len(size.dims) > 1 and size.dims[0][1] > 0:
            text = size.describe(session.example.inputs)
            notes.append(f"equal sizes are taken to follow each other: {text}")
    return notes
