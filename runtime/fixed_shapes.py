"""DeepSpeed sends a boundary's shapes once: later batches must have the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.errors import RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FixedShapes"]


class FixedShapes:
    """Checks that the first stage's inputs keep the shapes they first had.

    Without ``dynamic_shape=True`` the later stages go on receiving into buffers of the
    first shape: on gloo and NCCL alike they would wait for ever, or read garbage.

    Args:
        names: What the inputs are called, in order; for messages.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._shapes: tuple[tuple[int, ...], ...] | None = None

    def reset(self) -> None:
        """Take the next batch's shapes for the fixed ones."""
        self._shapes = None

    def check(self, inputs: Any) -> None:
        """Check one micro-batch before anything of it is sent.

        Args:
            inputs: A tensor or a tuple of tensors.

        Raises:
            RuntimeGuardError: An input has another shape than the first one had.
        """
        tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        if self._shapes is None:
            self._shapes = shapes
        if shapes == self._shapes:
            return
        changed = [
            f"{self._name(index)} has shape {now}; in the first micro-batch it had "
            f"{first}"
            for index, (first, now) in enumerate(
                zip(self._shapes, shapes, strict=False)
            )
            if first != now
        ]
        raise RuntimeGuardError(
            f"{'; '.join(changed)}: the stages exchange their shapes once",
            hint="train with the engine of plan.initialize(), which looks ahead, pass "
            "dynamic_shape=True to plan.pipeline_module(), or pad all micro-batches to "
            "one shape",
        )

    def _name(self, index: int) -> str:
        known = index < len(self._names)
        return f"the input {self._names[index]!r}" if known else f"input {index}"
