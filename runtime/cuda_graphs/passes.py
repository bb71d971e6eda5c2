"""One segment's forward and backward, recorded with memory of their own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.cuda_graphs.outgoing import Outgoing
from partitioner.runtime.cuda_graphs.refusal import NotReplayedError, RecordingError
from partitioner.runtime.cuda_graphs.traces import Traces
from partitioner.runtime.cuda_graphs.twins import Twins, leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from partitioner.runtime.cuda_graphs.recorder import Recorder
    from partitioner.runtime.gradient_sums import GradientSums
    from partitioner.runtime.segment import SegmentProgram

__all__ = ["Passes", "RecomputingPasses"]

_HINT = "train without cuda_graphs"


class Passes:
    """A forward and a backward for one micro-batch at a time, recorded and replayed.

    The backward is recorded when it is first wanted: only then it is known which of the
    outgoing values get a gradient.

    Args:
        program: What to record.
        values: Incoming values like those that will come, tensors and numbers.
        sums: Where the backward adds the gradients of weights.
        recorder: Records launches.

    Raises:
        NotReplayedError: A replay would not do what the program does.
        RuntimeGuardError: The forward cannot be recorded.
    """

    def __init__(
        self,
        program: SegmentProgram,
        values: Sequence[Any],
        *,
        sums: GradientSums,
        recorder: Recorder,
    ) -> None:
        self.outgoing = Outgoing(())
        self._program = program
        self._sums = sums
        self._recorder = recorder
        self._pool = self._memory(recorder)
        self._twins = Twins(program)
        self._values = [_like(each) for each in values]
        self._inputs = [each for each in self._values if isinstance(each, Tensor)]
        self._computed: list[Tensor] = []
        """What the last forward has made, with its history."""
        self._gradients: list[Tensor | None] = []
        self._reached: dict[nn.Parameter, None] = {}
        """The weights to which the backward gives a gradient."""
        self._input_gradients: list[Tensor | None] = []
        self._replay_backward: Callable[[], None] | None = None
        self._made, self._replay_forward = self._record_forward()
        self.differentiable = [each.requires_grad for each in self._computed]
        """Of each tensor that the forward makes, whether it has a gradient."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run forward.

        Args:
            inputs: The incoming tensors.

        Returns:
            What it has made, in memory that the next forward here writes again.
        """
        self._fill(inputs)
        self._replay_forward()
        return self._made

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run backward of the last forward here, and add the gradients of weights.

        Args:
            gradients: Of what the forward has made; None: nothing comes of it.

        Returns:
            The gradients of the incoming tensors.

        Raises:
            RuntimeGuardError: A gradient comes that did not come before, or the
                backward cannot be recorded.
        """
        replay = self._replay_backward or self._record_backward(gradients)
        for kept, gradient in zip(self._gradients, gradients, strict=True):
            if kept is None and gradient is not None:
                raise RuntimeGuardError(
                    f"segment {self._program.name!r}: an outgoing value has a gradient "
                    "that it did not have when backward was recorded",
                    hint=_HINT,
                )
            if kept is not None:
                kept.zero_() if gradient is None else kept.copy_(gradient)
        self._sums.begin(self._reached)
        replay()
        # Copies: they may be on their way still when this memory is written again.
        return [g if g is None else g.clone() for g in self._input_gradients]

    @staticmethod
    def _memory(recorder: Recorder) -> Any:
        """Return memory that keeps what is between forward and backward."""
        return recorder.pool()

    def _fill(self, inputs: Sequence[Tensor]) -> None:
        for kept, given in zip(self._inputs, inputs, strict=True):
            # Autograd must not count this: what it has saved is to be overwritten.
            kept.data.copy_(given)

    def _forward(self) -> list[Tensor]:
        """Compute, and return what was made without its history."""
        self._compute()
        return [each.detach() for each in self._computed]

    def _compute(self) -> None:
        before = _versions(self._inputs)
        with self._without_trace("forward"), torch.enable_grad():
            values = self._program.plain(*self._values)
        if _versions(self._inputs) != before:
            raise NotReplayedError("it writes into what it is given")
        self.outgoing, self._computed = Outgoing.of(values, self._values)
        known = {*self._inputs, *self._twins.of.values()}
        if leaves_of(self._computed) - known:
            raise NotReplayedError("it trains a tensor that none of its modules has")

    @contextmanager
    def _without_trace(self, which: str) -> Iterator[None]:
        """Use the twins, and refuse what a replay would leave out."""
        traces = Traces(self._program, on_host=self._recorder.device_type == "cpu")
        try:
            # In backward as well: a module that recomputes reads its weights again.
            with self._twins.in_place():
                yield
        finally:
            left = traces.undo()
        if left:
            raise NotReplayedError(f"its {which} changes {left}")

    def _record_forward(self) -> tuple[list[Tensor], Callable[[], None]]:
        try:
            return self._recorder.record(self._forward, self._pool)
        except RecordingError as error:
            raise self._cannot("forward", error) from error

    def _cannot(self, which: str, error: Exception) -> RuntimeGuardError:
        return RuntimeGuardError(
            f"the {which} of segment {self._program.name!r} cannot be recorded as a "
            f"CUDA graph: {error}",
            hint=_HINT,
        )

    def _record_backward(
        self, gradients: Sequence[Tensor | None]
    ) -> Callable[[], None]:
        self._gradients = [
            None if gradient is None else torch.empty_like(made)
            for gradient, made in zip(gradients, self._made, strict=True)
        ]
        memory = self._sums.memory(self._twins.of)
        for weight, twin in self._twins.of.items():
            twin.register_post_accumulate_grad_hook(self._adder(weight, memory[weight]))
        try:
            made, replay = self._recorder.record(self._backward, self._pool)
        except (NotReplayedError, RecordingError) as error:
            raise self._cannot("backward", error) from error
        self._input_gradients, self._replay_backward = made, replay
        return replay

    def _backward(self) -> list[Tensor | None]:
        """Differentiate; hooks add the gradients of weights to their sums."""
        for each in self._inputs:
            each.grad = None
        pairs = [
            (made, gradient)
            for made, gradient in zip(self._computed, self._gradients, strict=True)
            if gradient is not None
        ]
        with self._without_trace("backward"):
            torch.autograd.backward([m for m, _ in pairs], [g for _, g in pairs])
        self._computed = []
        found = [each.grad for each in self._inputs]
        for each in self._inputs:
            each.grad = None
        return found

    def _adder(self, weight: nn.Parameter, memory: Tensor) -> Callable[[Tensor], None]:
        reached = self._reached  # not self: Python's collector does not see hooks

        @torch.no_grad()
        def add(twin: Tensor) -> None:
            if twin.grad is not None:
                memory.add_(twin.grad)
            twin.grad = None  # one after the other, its memory is free for the next
            reached[weight] = None

        return add


class RecomputingPasses(Passes):
    """Passes of which nothing is kept between forward and backward.

    One serves all micro-batches in flight.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._computed = []

    @staticmethod
    def _memory(recorder: Recorder) -> Any:
        return recorder.common_pool

    def backward_from(
        self, inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Run forward again, and backward.

        Args:
            inputs: The incoming tensors of the micro-batch.
            gradients: As for :meth:`Passes.backward`.

        Returns:
            The gradients of the incoming tensors.

        Raises:
            RuntimeGuardError: As :meth:`Passes.backward`.
        """
        self._fill(inputs)
        return self.backward(gradients)

    def _backward(self) -> list[Tensor | None]:
        self._compute()
        return super()._backward()


def _like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return (
        torch.empty_like(value)
        .copy_(value.detach())
        .requires_grad_(value.requires_grad)
    )


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [each._version for each in tensors]  # noqa: SLF001 - torch has no public name
