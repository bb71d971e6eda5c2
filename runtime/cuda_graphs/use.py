"""One micro-batch in flight, between the forward and the backward that are replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from partitioner.errors import RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.runtime.cuda_graphs.passes import Passes, RecomputingPasses

__all__ = ["KeptUse", "RecomputedUse", "Use", "replay"]


class Use(Protocol):
    """Passes in the service of one micro-batch."""

    @property
    def passes(self) -> Passes:
        """The passes."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run forward, see :meth:`Passes.forward`."""

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run backward, see :meth:`Passes.backward`."""


class KeptUse:
    """Passes that keep activations for one micro-batch, and are free afterwards.

    Args:
        passes: For this micro-batch alone.
        free: Where they go when its backward has run, or if there is none.
    """

    def __init__(self, passes: Passes, free: list[Passes]) -> None:
        self.passes = passes
        self._free: list[Passes] | None = free

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run forward."""
        kinds = self.passes.differentiable
        made = zip(self.passes.forward(inputs), kinds, strict=True)
        # A later segment may read what has no gradient after this one's backward.
        found = [each if has else each.clone() for each, has in made]
        if not any(kinds):
            self._let_go()
        return found

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run backward.

        Raises:
            RuntimeGuardError: A second time, when the memory is another micro-batch's.
        """
        if self._free is None:
            raise RuntimeGuardError(
                "backward ran twice through a segment that is replayed",
                hint="train without cuda_graphs",
            )
        try:
            return self.passes.backward(gradients)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._free is not None:
            self._free.append(self.passes)
            self._free = None


class RecomputedUse:
    """Passes that keep nothing, and what this micro-batch begins with.

    Args:
        passes: For all micro-batches in flight.
        written_later: Of each incoming tensor, whether a later segment writes in place
            to its memory.
    """

    def __init__(
        self, passes: RecomputingPasses, written_later: Sequence[bool]
    ) -> None:
        self.passes = passes
        self._written_later = written_later
        self._inputs: Sequence[Tensor] = ()

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run forward."""
        self._inputs = [
            each.detach().clone() if written else each.detach()
            for each, written in zip(inputs, self._written_later, strict=True)
        ]
        return [each.clone() for each in self.passes.forward(inputs)]

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run forward again, and backward."""
        return self.passes.backward_from(self._inputs, gradients)


def replay(use: Use, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run forward, and let autograd run backward.

    Args:
        use: The passes for this micro-batch.
        inputs: The incoming tensors.

    Returns:
        What the forward has made.
    """
    # Without a leaf autograd would pass by where no incoming tensor has gradients.
    anchor = torch.empty(0, requires_grad=True)
    made: tuple[Tensor, ...] = _Replay.apply(use, anchor, *inputs)  # type: ignore[no-untyped-call]
    return made


class _Replay(torch.autograd.Function):
    """A replayed forward, whose backward is replayed as well."""

    @staticmethod
    def forward(
        ctx: Any,
        use: Use,
        anchor: Tensor,  # noqa: ARG004 - for autograd alone
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.use = use
        made = [each.detach() for each in use.forward(inputs)]
        kinds = zip(made, use.passes.differentiable, strict=True)
        ctx.mark_non_differentiable(*(each for each, has in kinds if not has))
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *ctx.use.backward(gradients))
