"""Record the forward as often as needed: both modes, a second size of everything."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from partitioner.capture.fakes import (
    cache_configs,
    caches_off,
    fake_weights,
    make_fake,
    untouched,
)
from partitioner.capture.inputs import Example
from partitioner.capture.merge import Mismatch, compare, merge_modes, merge_sizes, prune
from partitioner.capture.records import Recording
from partitioner.capture.recorder import LeafNeeded, Recorder
from partitioner.capture.sizes import FreeSize, candidates
from partitioner.errors import CaptureError, DataDependentError, ForwardError
from partitioner.graph import InputSpec

__all__ = ["Takes", "record_all"]

MAX_LEAVES = 64
"""Fallback leaves after which recording gives up."""


@dataclass(slots=True, kw_only=True)
class Takes:
    """The merged recording and what was learnt on the way."""

    recording: Recording
    inputs: tuple[InputSpec, ...]
    sizes: tuple[FreeSize, ...]
    aliases: dict[str, str]
    configs: tuple[object, ...]
    notes: list[str]


class _Session:
    """Records one model; grows the set of leaves as recordings demand."""

    def __init__(
        self, model: nn.Module, example: Example, dtype: torch.dtype | None
    ) -> None:
        self.model, self.example, self.dtype = model, example, dtype
        self.configs = cache_configs(model)
        self.leaves: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.notes: list[str] = list(example.notes)

    def record(
        self,
        *,
        training: bool,
        shapes: Sequence[tuple[int, ...]] | None = None,
        seed: int | None = None,
    ) -> Recording:
        """Record once; on demand again with more leaves."""
        while True:
            try:
                return prune(self._once(training, shapes, seed))
            except LeafNeeded as needed:
                self._add_leaf(needed.path, needed.reason, needed.source, needed)

    def _once(
        self,
        training: bool,
        shapes: Sequence[tuple[int, ...]] | None,
        seed: int | None,
    ) -> Recording:
        model = self.model
        with (
            untouched(model),
            torch.enable_grad(),
            caches_off(self.configs),
            fake_weights(model, self.dtype) as fakes,
        ):
            set_mode(model, training)
            self.aliases = fakes.aliases
            recorder = Recorder(model, fakes, frozenset(self.leaves))
            fake_inputs = []
            for index, tensor in enumerate(self.example.tensors()):
                shape = shapes[index] if shapes else None
                fake = make_fake(
                    fakes.mode,
                    tensor,
                    device=fakes.device,
                    dtype=self.dtype,
                    shape=shape,
                )
                recorder.add_input(fake, self.example.inputs[index].name)
                fake_inputs.append(fake)
            args, kwargs = self.example.with_tensors(fake_inputs)
            if seed is not None:
                torch.manual_seed(seed)
            return recorder.run(model, args, kwargs)

    def _add_leaf(
        self, path: str, reason: str, source: str, cause: BaseException
    ) -> None:
        if path == "" or path in self.leaves or len(self.leaves) >= MAX_LEAVES:
            where = f"module {path!r}" if path else f"root {type(self.model).__name__}"
            message = f"{reason}, in the forward of the {where} at {source}"
            hint = (
                "the recording would bake this example's value in; move the "
                "value-dependent part into a submodule of its own (it then runs as a "
                "whole), or compute it with tensor operations (torch.where)"
            )
            raise DataDependentError(
                message, hint=hint, module_path=path, source=source
            ) from cause
        self.leaves[path] = f"{reason} ({source})"
        self.notes.append(f"{path} runs as a whole: {reason} ({source})")


def set_mode(model: nn.Module, training: bool) -> None:
    """Put the model in one mode; a submodule the user put in the other keeps its own.

    A submodule whose flag differs from the root's was frozen by the user.
    """
    root = model.training
    for module in model.modules():
        if module.training == root:
            module.training = training


def record_all(
    model: nn.Module, example: Example, dtype: torch.dtype | None
) -> Takes:
    """Record in train and eval mode and at second sizes, and merge.

    Raises:
        ForwardError: The forward raised on the example inputs.
        DataDependentError: The root reads values of tensors.
        CaptureError: Train and eval mode differ at the root.
    """
    session = _Session(model, example, dtype)
    try:
        base, evaluation = _both_modes(session)
    except CaptureError:
        raise
    except Exception as error:
        raise _forward_error(model, example, error) from error
    sizes, others = _other_sizes(session, base)
    recording, sizes = _merge_all(session, base, evaluation, sizes, others)
    return Takes(
        recording=recording,
        inputs=_with_symbols(example.inputs, sizes),
        sizes=tuple(sizes),
        aliases=session.aliases,
        configs=session.configs,
        notes=_notes(session, sizes),
    )


def _both_modes(session: _Session) -> tuple[Recording, Recording]:
    """Record train and eval mode; modules that differ in structure become leaves."""
    while True:
        train = session.record(training=True)
        if train.draw_reads and _draws_matter(session, train):
            continue
        evaluation = session.record(training=False)
        count = len(session.leaves)
        try:
            compare(train, evaluation)
        except Mismatch as mismatch:
            path = _enclosing(train, mismatch.position)
            reason = f"train and eval mode differ: {mismatch.reason}"
            session._add_leaf(path, reason, mismatch.source, mismatch)
        if count == len(session.leaves):
            return train, evaluation


def _draws_matter(session: _Session, train: Recording) -> bool:
    """Record under other seeds; True if a branch went another way (leaves added)."""
    for seed in (1, 2):
        try:
            compare(train, session.record(training=True, seed=seed))
        except Mismatch as mismatch:
            path, source = train.draw_reads[0]
            reason = "Python branches on a random number"
            session._add_leaf(path, reason, source, mismatch)
            return True
    for path, source in dict.fromkeys(train.draw_reads):
        session.notes.append(
            f"{path or 'the root'} branches on a random number ({source}); under three "
            "seeds the branch went the same way, so it is taken as fixed"
        )
    return False


def _enclosing(recording: Recording, position: int) -> str:
    """Return the path of the innermost module call around a call's number."""
    inner = ""
    for span in recording.spans:
        if span.start <= position < span.end:
            inner = span.path
    return inner


def _other_sizes(
    session: _Session, base: Recording
) -> tuple[list[FreeSize], list[Recording]]:
    """Record once per size with that size changed; keep what can vary."""
    sizes: list[FreeSize] = []
    others: list[Recording] = []
    inputs = session.example.inputs
    for size in candidates(inputs):
        shapes = [list(spec.shape) for spec in inputs]
        for index, dim in size.dims:
            shapes[index][dim] = size.other
        leaves = dict(session.leaves)
        try:
            with _quiet_fakes():
                other = session.record(
                    training=True, shapes=[tuple(shape) for shape in shapes]
                )
            if leaves != session.leaves:
                raise Mismatch("another module had to run as a whole", 0, "")
            merge_sizes(_copy(base), [other], [size])
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            session.leaves = leaves
            session.notes.append(f"fixed: {size.describe(inputs)}: {reason[:160]}")
            continue
        sizes.append(size)
        others.append(other)
    return sizes, others


@contextmanager
def _quiet_fakes() -> Iterator[None]:
    """Silence torch's log of a failing operator: failing is an answer here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _copy(recording: Recording) -> Recording:
    """Copy what merging changes."""
    return replace(
        recording,
        calls=[replace(call) for call in recording.calls],
        spans=[replace(span) for span in recording.spans],
    )


def _merge_all(
    session: _Session,
    base: Recording,
    evaluation: Recording,
    sizes: list[FreeSize],
    others: list[Recording],
) -> tuple[Recording, list[FreeSize]]:
    while True:
        try:
            merged = merge_sizes(_copy(base), others, sizes)
            break
        except Mismatch as mismatch:
            dropped = sizes.pop()
            others.pop()
            text = dropped.describe(session.example.inputs)
            session.notes.append(f"fixed: {text}: {mismatch}")
    try:
        return merge_modes(merged, evaluation, [size.value for size in sizes]), sizes
    except Mismatch as mismatch:
        message = f"train and eval mode differ: {mismatch}"
        hint = "move the mode-dependent part into a submodule of its own"
        raise CaptureError(message, hint=hint) from mismatch


def _with_symbols(
    inputs: tuple[InputSpec, ...], sizes: Sequence[FreeSize]
) -> tuple[InputSpec, ...]:
    symbols = [[-1] * len(spec.shape) for spec in inputs]
    for number, size in enumerate(sizes):
        for index, dim in size.dims:
            symbols[index][dim] = number
    return tuple(
        replace(spec, symbols=tuple(symbols[index]))
        for index, spec in enumerate(inputs)
    )


def _notes(session: _Session, sizes: Sequence[FreeSize]) -> list[str]:
    notes = list(session.notes)
    if session.configs:
        notes.append(
            "key/value caches are switched off (use_cache=False) while the model runs"
        )
    for size in sizes:
        if len(size.dims) > 1 and size.dims[0][1] > 0:
            text = size.describe(session.example.inputs)
            notes.append(f"equal sizes are taken to follow each other: {text}")
    return notes


def _forward_error(
    model: nn.Module, example: Example, error: Exception
) -> CaptureError:
    """Say whether the model itself fails on these inputs, or only the recording."""
    name = type(model).__name__
    given = ", ".join(
        f"{spec.name}: {str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
        for spec in example.inputs
    )
    first = str(error).splitlines()[0] if str(error) else ""
    detail = f"{type(error).__name__}: {first}"
    message = f"{name}.forward failed on the example inputs ({given}): {detail}"
    hint = "check the shapes and dtypes of example_inputs against the forward"
    return ForwardError(message, hint=hint)
