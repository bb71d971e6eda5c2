"""Which calls of a segment are replayed, and in whose memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.runtime.cuda_graphs.passes import Passes, RecomputingPasses
from partitioner.runtime.cuda_graphs.refusal import (
    NotReplayedError,
    hindrance,
    hindrance_now,
)
from partitioner.runtime.cuda_graphs.use import KeptUse, RecomputedUse, replay
from partitioner.runtime.python_state import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.runtime.cuda_graphs.recorder import Recorder
    from partitioner.runtime.cuda_graphs.use import Use
    from partitioner.runtime.gradient_sums import GradientSums
    from partitioner.runtime.segment import SegmentProgram

__all__ = ["Replays"]

_log = logging.getLogger(__name__)

_CHANGES = 3
"""Batches in a row with a changed module after which nothing is recorded any more."""
_TURNS = 8
"""How often other shapes than the last are recorded, which takes a step's time."""


class Replays:
    """Runs a segment for training: the first batch as it is, then by replays.

    The first batch lets libraries choose and compile their kernels, which cannot be
    recorded. Then all micro-batches of the shapes that came first are replayed; others
    run as they are, until two batches in a row have nothing else. As many passes are
    recorded as there are micro-batches in flight.

    Args:
        program: The segment.
        sums: Where gradients of weights are added.
        recorder: Records launches.
    """

    def __init__(
        self, program: SegmentProgram, sums: GradientSums, recorder: Recorder
    ) -> None:
        self.replayed = 0
        """Forwards that were replayed."""
        self.why_not = ""
        """Why nothing is replayed from now on."""
        self._program = program
        self._sums = sums
        self._recorder = recorder
        self._state: Any = None
        self._key: Any = None
        self._missed: Any = None
        """The shapes of the last batch, if none of it was replayed."""
        self._turns = 0
        self._replayed_before = 0
        self._changes = 0
        self._first_keys: dict[Any, None] = {}
        self._recorded: list[Passes] = []
        self._free: list[Passes] = []
        self._recomputing: RecomputingPasses | None = None

    def begin_batch(self) -> None:
        """Look for what has changed since the last batch."""
        if not self.why_not:
            self._refuse(hindrance(self._program, self._recorder.device_type))
        state = None if self.why_not else self._present_state()
        if state is None or state != self._state:
            self._forget(state)
        else:
            self._changes = 0
            # Also those whose backward never came: until now their memory was in use.
            self._free = list(self._recorded)
            self._choose_shapes()
        self._first_keys.clear()
        self._replayed_before = self.replayed

    def _choose_shapes(self) -> None:
        """Replay those that came first, or others that two batches had alone."""
        first = next(iter(self._first_keys), None)
        if self._key is None:
            self._key = first
        elif self.replayed > self._replayed_before:
            self._missed = None
        elif first is not None and first == self._missed and self._turns < _TURNS:
            self._turns += 1
            self._let_go()
            self._key = first
        else:
            self._missed = first

    def _let_go(self) -> None:
        self._key = self._missed = None
        self._recorded, self._free = [], []
        self._recomputing = None

    def _forget(self, state: Any) -> None:
        """Let go of all recordings; what they would hold fast is different now."""
        self._state = state
        self._let_go()
        self._changes += 1
        if self._changes == _CHANGES:
            self._refuse(
                "its tensors, or numbers of its modules, change with each batch"
            )

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the segment.

        Args:
            values: The incoming values.

        Returns:
            The outgoing ones.

        Raises:
            RuntimeGuardError: The device refused to record.
        """
        if not self.why_not:
            self._refuse(hindrance_now(values, self._recorder.device_type))
        if self.why_not:
            return self._program.unrecorded(*values)
        key = self._key_of(values)
        if key != self._key:
            return self._as_it_is(values, key)
        try:
            use = self._use(values)
        except NotReplayedError as error:
            self._refuse(str(error))
            return self._program.unrecorded(*values)
        self.replayed += 1
        tensors = [each for each in values if isinstance(each, Tensor)]
        made = replay(use, tensors)
        return use.passes.outgoing.values(values, made)

    def _as_it_is(self, values: Sequence[Any], key: Any) -> tuple[Any, ...]:
        """Run the segment as without CUDA graphs, and learn from it."""
        self._first_keys[key] = None
        if not self._program.is_recomputed:
            return self._program.unrecorded(*values)
        before = self._recorder.random_state()
        result = self._program.unrecorded(*values)
        draws = self._recorder.random_state() != before
        if draws or self._program.writes_buffers:
            self._refuse("it is recomputed, and draws random numbers or writes buffers")
        return result

    def _use(self, values: Sequence[Any]) -> Use:
        """Return passes for one micro-batch, recorded for it if none are free."""
        record: dict[str, Any] = {"sums": self._sums, "recorder": self._recorder}
        if self._program.is_recomputed:
            if self._recomputing is None:
                self._recomputing = RecomputingPasses(self._program, values, **record)
            later = self._program.written_later
            written = [
                place in later
                for place, each in enumerate(values)
                if isinstance(each, Tensor)
            ]
            return RecomputedUse(self._recomputing, written)
        if not self._free:
            self._free.append(Passes(self._program, values, **record))
            self._recorded += self._free
        return KeptUse(self._free.pop(), self._free)

    def _refuse(self, reason: str) -> None:
        if reason and not self.why_not:
            self.why_not = reason
            _log.warning(
                "segment %r runs without CUDA graphs: %s", self._program.name, reason
            )

    def _key_of(self, values: Sequence[Any]) -> Any:
        """Return what must be the same for a replay."""
        return tuple(
            (each.shape, each.stride(), each.dtype, each.requires_grad)
            if isinstance(each, Tensor)
            else (type(each), repr(each))
            for each in values
        )

    def _present_state(self) -> Any:
        """Return what a recording holds fast."""
        weights = [each for each in self._program.parameters() if each.requires_grad]
        tensors = [*self._program.parameters(), *self._program.buffers()]
        tensors += self._sums.memory(weights).values()
        numbers: list[Any] = []
        for part in self._program.modules():
            if part is self._program:
                continue  # its own attributes are not the user's
            for value in vars(part).values():
                if type(value) in PLAIN:
                    numbers.append(value)
                elif isinstance(value, Tensor):
                    tensors.append(value)
        return numbers, [_place_of(each) for each in tensors]


def _place_of(tensor: Tensor) -> Any:
    """Return where a tensor is, and how it lies there."""
    if tensor.layout != torch.strided or type(tensor) not in (Tensor, nn.Parameter):
        return id(tensor), tensor.requires_grad
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.requires_grad,
    )
