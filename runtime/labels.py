"""How the labels of a micro-batch were flattened, and how they are put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import RuntimeGuardError

__all__ = ["LabelsLayout"]

_Made = tuple[pytree.TreeSpec, dict[int, Any]]
"""The structure of some labels, and their leaves that are no tensors by place."""


class LabelsLayout:
    """How the flat labels of each micro-batch were made.

    The adapter writes it and the loss reads it, on the last stage. DeepSpeed's own
    engine runs the forward of a micro-batch right after loading it, so the latest
    layout is the right one; an engine that loads ahead sets ``keeps_all``, and the
    layouts are read in the order in which they were written.

    Args:
        late: How many inputs come before the user's labels.
    """

    def __init__(self, late: int = 0) -> None:
        self.late = late
        self.keeps_all = False
        self._made: deque[_Made] = deque(maxlen=1)

    def clear(self, *, keeps_all: bool) -> None:
        """Forget all layouts.

        Args:
            keeps_all: Keep every layout from now on until it is read.
        """
        self.keeps_all = keeps_all
        self._made = deque(maxlen=None if keeps_all else 1)

    def flatten(self, labels: Any) -> tuple[Tensor, ...]:
        """Return the tensors of the user's labels, and remember all the rest."""
        # A BatchEncoding is a mapping that pytree does not know.
        plain = dict(labels) if isinstance(labels, Mapping) else labels
        leaves, spec = pytree.tree_flatten(plain)
        others = {
            index: leaf
            for index, leaf in enumerate(leaves)
            if not isinstance(leaf, Tensor)
        }
        self._made.append((spec, others))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))

    def split(self, labels: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Return the late inputs and the user's labels as the user gave them.

        Args:
            labels: What DeepSpeed hands to the loss.

        Raises:
            RuntimeGuardError: The labels did not come through the adapter.
        """
        if not self._made:
            return self._unmade(labels)
        made = self._made.popleft() if self.keeps_all else self._made[0]
        return self._split(labels, made)

    def split_latest(self, labels: Any) -> tuple[tuple[Tensor, ...], Any]:
        """As :meth:`split` for the labels made last, which stay to be read."""
        if not self._made:
            return self._unmade(labels)
        return self._split(labels, self._made[-1])

    def _unmade(self, labels: Any) -> tuple[tuple[Tensor, ...], Any]:
        if self.late:
            raise RuntimeGuardError(
                f"the loss needs {self.late} of the model's inputs",
                hint="call engine.set_batch_fn(plan.batch_fn) before training",
            )
        return (), labels

    def _split(self, labels: Any, made: _Made) -> tuple[tuple[Tensor, ...], Any]:
        spec, others = made
        tensors = (labels,) if isinstance(labels, Tensor) else tuple(labels)
        expected = self.late + spec.num_leaves - len(others)
        if len(tensors) != expected:
            raise RuntimeGuardError(
                f"the loss got {len(tensors)} tensors as labels; "
                f"the batch adapter made {expected}",
                hint="engine.set_batch_fn must have plan.batch_fn as it is",
            )
        rest = iter(tensors[self.late :])
        leaves = [
            others[index] if index in others else next(rest)
            for index in range(spec.num_leaves)
        ]
        return tensors[: self.late], pytree.tree_unflatten(leaves, spec)
