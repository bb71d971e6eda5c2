"""Record one model as often as asked; grow the set of leaves as recordings demand."""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from partitioner.capture.fakes import (
    FakeWeights,
    cache_configs,
    caches_off,
    fake_weights,
    make_fake,
)
from partitioner.capture.frames import forward_source
from partitioner.capture.idle import CountersChanged, idle_counters, idle_note
from partitioner.capture.prune import prune
from partitioner.capture.recorder import Recorder
from partitioner.capture.refusals import LeafNeeded
from partitioner.capture.untouched import untouched
from partitioner.errors import DataDependentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from partitioner.capture.inputs import Example
    from partitioner.capture.records import Recording

__all__ = ["Session", "set_mode"]

MAX_LEAVES = 64
"""Fallback leaves after which recording gives up."""

HINT = (
    "the recording would bake this example's value in; move the value-dependent part "
    "into a submodule of its own (it then runs as a whole), or compute it with tensor "
    "operations (torch.where)"
)


class Session:
    """Records one model.

    Args:
        model: The user's module, which every recording leaves as it was.
        example: Its inputs.
        dtype: Floating dtype to record in; None keeps the model's.
    """

    def __init__(
        self, model: nn.Module, example: Example, dtype: torch.dtype | None
    ) -> None:
        self.model, self.example, self.dtype = model, example, dtype
        self.configs = cache_configs(model)
        self.leaves: dict[str, str] = {}
        """Path of every module that runs as a whole → why."""
        self.aliases: dict[str, str] = {}
        self.idle = {True: frozenset[str](), False: frozenset[str]()}
        """In train and in eval mode: what the root changes and does nothing by."""
        self.notes: list[str] = []

    def record(self, *, training: bool) -> Recording:
        """Record at the example's sizes, again with more leaves where needed.

        Args:
            training: The mode.

        Raises:
            DataDependentError: The root itself would have to be a leaf.
        """
        while True:
            recording = self._attempt(training=training)
            if recording is not None:
                return recording

    def _attempt(self, *, training: bool) -> Recording | None:
        try:
            return self._once(training=training, shapes=None)
        except LeafNeeded as needed:
            if not self._accepts_idle(needed, training=training):
                self.require_leaf(needed)
            return None

    def _accepts_idle(self, needed: LeafNeeded, *, training: bool) -> bool:
        """Let the root change counters if nothing that it does hangs on them."""
        if not isinstance(needed, CountersChanged) or needed.path:
            return False

        def twice(names: frozenset[str]) -> list[Recording]:
            return self._in_a_row(2, training=training, shapes=None, idle=names)

        before = self.idle[training]
        self.idle[training] |= idle_counters(twice, before | needed.names)
        return self.idle[training] != before

    def record_at(
        self, shapes: Sequence[tuple[int, ...]], *, training: bool = True
    ) -> Recording:
        """Record at other input shapes, with the leaves as they are.

        Raises:
            LeafNeeded: They do not do at these sizes.
        """
        return self._once(training=training, shapes=shapes)

    def _once(
        self, *, training: bool, shapes: Sequence[tuple[int, ...]] | None
    ) -> Recording:
        idle = self.idle[training]
        (recording,) = self._in_a_row(1, training=training, shapes=shapes, idle=idle)
        return recording

    def _in_a_row(
        self,
        times: int,
        *,
        training: bool,
        shapes: Sequence[tuple[int, ...]] | None,
        idle: frozenset[str],
    ) -> list[Recording]:
        """Record forwards that each see what the one before has left behind."""
        model = self.model
        with (
            _no_collection(),
            _quiet_fakes(),
            untouched(model),
            torch.enable_grad(),
            caches_off(self.configs),
            fake_weights(model, self.dtype) as fakes,
        ):
            set_mode(model, training=training)
            self.aliases = fakes.aliases
            # In train mode, what autograd saves and what is drawn is learnt at the
            # example's sizes.
            watched = shapes is None or not training
            found = []
            for _ in range(times):
                recorder = Recorder(model, fakes, frozenset(self.leaves))
                recorder.idle_counters = idle
                args, kwargs = self._fake_inputs(fakes, recorder, shapes)
                found.append(prune(recorder.run(model, args, kwargs, watched=watched)))
            return found

    def _fake_inputs(
        self,
        fakes: FakeWeights,
        recorder: Recorder,
        shapes: Sequence[tuple[int, ...]] | None,
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        made = []
        for index, tensor in enumerate(self.example.tensors()):
            fake = make_fake(
                fakes.mode,
                tensor,
                device=fakes.device,
                dtype=self.dtype,
                shape=shapes[index] if shapes else None,
            )
            recorder.add_input(fake, self.example.inputs[index].name, tensor)
            made.append(fake)
        return self.example.with_tensors(made)

    def require_leaf(self, needed: LeafNeeded) -> None:
        """Let a module run as a whole from now on.

        Raises:
            DataDependentError: It is the root, or it runs as a whole already.
        """
        path, reason = needed.path, needed.reason
        source = needed.source or forward_source(dict(self.model.named_modules())[path])
        if path == "" or path in self.leaves or len(self.leaves) >= MAX_LEAVES:
            where = f"module {path!r}" if path else f"root {type(self.model).__name__}"
            message = f"{reason}, in the forward of the {where} at {source}"
            raise DataDependentError(
                message, hint=needed.hint or HINT, module_path=path, source=source
            ) from needed
        self.leaves[path] = f"{path} runs as a whole: {reason} ({source})"

    def leaf_notes(self) -> list[str]:
        """Say why each leaf is one, except for what is inside another leaf."""
        return [
            note
            for path, note in self.leaves.items()
            if not any(path.startswith(f"{outer}.") for outer in self.leaves)
        ]

    def idle_notes(self) -> list[str]:
        """Say which of the root's counters were taken to change nothing."""
        names = self.idle[True] | self.idle[False]
        return [idle_note(names)] if names else []


def set_mode(model: nn.Module, *, training: bool) -> None:
    """Put the model in one mode; a submodule the user put in the other keeps its own.

    A submodule whose flag differs from the root's was frozen by the user.
    """
    root = model.training
    for module in model.modules():
        if module.training == root:
            module.training = training


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector rest: thousands of live objects, and none to free."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _quiet_fakes() -> Iterator[None]:
    """Silence torch's log of a failing operator: failing is an answer here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
