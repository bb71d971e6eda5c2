"""A segment whose activations are recomputed during backward."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, is_grad_enabled
from torch.utils.checkpoint import checkpoint

from partitioner.runtime.recompute import Recomputation
from partitioner.runtime.segment import Segment, SegmentBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.runtime.wire import WireSpec

__all__ = ["CheckpointedSegment"]


class CheckpointedSegment(Segment):
    """A segment which keeps only its inputs and runs again during backward.

    Independent of DeepSpeed's own checkpointing. Dropout draws the same numbers
    again, and buffers are left as the first run left them.
    """

    def __init__(
        self,
        body: SegmentBody,
        *,
        receive: WireSpec | None = None,
        send: WireSpec | None = None,
        is_first: bool = False,
    ) -> None:
        super().__init__(body, receive=receive, send=send, is_first=is_first)
        self._recomputation = Recomputation(self)
        # Until it is known that in this mode the body leaves its inputs alone, copies
        # are handed to it: what was written in place could not be recomputed.
        self._writes_inputs = {True: True, False: True}
        self._used, self._passed = _ways_of_inputs(body.graph)

    @property
    def writes_buffers(self) -> bool:
        """Whether a forward that is to be recomputed has written buffers."""
        return self._recomputation.writes_buffers

    def unrecorded(self, *values: Any) -> tuple[Any, ...]:
        """Compute the outgoing values, to be recomputed during backward."""
        if not is_grad_enabled():
            return self.plain(*values)
        copies = self._writes_inputs[self.training]
        seen: list[list[int]] = []
        result: tuple[Any, ...] = checkpoint(
            partial(self._run_again, copies=copies, seen=seen),
            *self._shielded(values),
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=self._recomputation.context_fn,
        )
        self._writes_inputs[self.training] = any(seen[0])
        return tuple(
            made if index is None or seen[0][index] else values[index]
            for made, index in zip(result, self._passed, strict=True)
        )

    def _shielded(self, values: Sequence[Any]) -> list[Any]:
        """Keep from recomputation what a later segment may write in place.

        What is only handed on is left out; of what is also used, a copy is kept.
        """
        later = self.written_later
        return [
            (_copy(value) if index in later else value) if used else None
            for index, (value, used) in enumerate(zip(values, self._used, strict=True))
        ]

    def _run_again(
        self, *values: Any, copies: bool, seen: list[list[int]]
    ) -> tuple[Any, ...]:
        """Run the body on the values or on copies; note how often each was written."""
        inputs = [_copy(value) for value in values] if copies else list(values)
        before = _versions(inputs)
        around = self.around_recomputation if seen else None
        with around() if around else nullcontext():
            result = self.plain(*inputs)
        after = _versions(inputs)
        seen.append([new - old for old, new in zip(before, after, strict=True)])
        return result


def _ways_of_inputs(
    graph: fx.Graph,
) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Say of each input whether it is used, and of each output which input it is."""
    inputs = list(graph.find_nodes(op="placeholder"))
    used = tuple(any(user.op != "output" for user in node.users) for node in inputs)
    place = {node: index for index, node in enumerate(inputs)}
    (outputs,) = graph.output_node().args
    return used, tuple(place.get(node) for node in outputs)  # type: ignore[union-attr]


def _versions(values: Sequence[Any]) -> list[int]:
    return [
        value._version if isinstance(value, Tensor) else 0  # noqa: SLF001 - torch has no public name
        for value in values
    ]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
