"""How the labels of a micro-batch were flattened, and how they are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import RuntimeGuardError

__all__ = ["LabelsLayout"]


class LabelsLayout:
    """How the flat labels of the last micro-batch were made.

    The adapter writes it and the loss reads it, on the last stage, where
    DeepSpeed runs the forward of a micro-batch right after loading it.

    Args:
        late: How many inputs come before the user's labels.
    """

    def __init__(self, late: int = 0) -> None:
        self.late = late
        self._spec: pytree.TreeSpec | None = None
        self._others: dict[int, Any] = {}

    def flatten(self, labels: Any) -> tuple[Tensor, ...]:
        """Return the tensors of the user's labels, and remember all the rest."""
        # A BatchEncoding is a mapping that pytree does not know.
        plain = dict(labels) if isinstance(labels, Mapping) else labels
        leaves, self._spec = pytree.tree_flatten(plain)
        self._others = {
            index: leaf
            for index, leaf in enumerate(leaves)
            if not isinstance(leaf, Tensor)
        }
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def split(self, labels: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Return the late inputs and the user's labels as the user gave them.

        Args:
            labels: What DeepSpeed hands to the loss.

        Raises:
            RuntimeGuardError: The labels did not come through the adapter.
        """
        if self._spec is None:
            if self.late:
                raise RuntimeGuardError(
                    f"the loss needs {self.late} of the model's inputs",
                    hint="call engine.set_batch_fn(plan.batch_fn) before training",
                )
            return (), labels
        tensors = (labels,) if isinstance(labels, Tensor) else tuple(labels)
        expected = self.late + self._spec.num_leaves - len(self._others)
        if len(tensors) != expected:
            raise RuntimeGuardError(
                f"the loss got {len(tensors)} tensors as labels; "
                f"the batch adapter made {expected}",
                hint="engine.set_batch_fn must have plan.batch_fn as it is",
            )
        return tensors[: self.late], self._unflatten(tensors[self.late :])

    def _unflatten(self, tensors: tuple[Tensor, ...]) -> Any:
        rest = iter(tensors)
        spec = self._spec
        if spec is None:  # split() has been before
            return None
        leaves = [
            self._others[index] if index in self._others else next(rest)
            for index in range(spec.num_leaves)
        ]
        return pytree.tree_unflatten(leaves, spec)
