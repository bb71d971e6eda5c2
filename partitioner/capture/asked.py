"""Gradients that a forward asks for (``h.requires_grad = True``) in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.functions import tensors_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.capture.values import Values

__all__ = ["AskedGradients"]

SEES = frozenset(
    ("__get__grad", "__get__grad_fn", "__get__is_leaf", "__get__requires_grad")
)
"""Functions whose answer the assignment would change."""


class AskedGradients:
    """Knows the values that would need gradients, had the assignment been made.

    It is left out instead. No weight has a part in such a value, so its gradient
    reaches none; but who holds the value could tell. What is computed from it is such a
    value too, until a weight that needs gradients comes in.

    Args:
        values: The tensors of the recording.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self._tensors: dict[int, torch.Tensor] = {}

    def leaves_out(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether this assigns to a value of the forward's own; remember it if so."""
        if name != "__set__requires_grad" or args[1] is not True:
            return False
        tensor = args[0]
        own = self.values.is_made_here(tensor)
        if own:
            self._tensors[id(tensor)] = tensor
        return own

    def follow(self, tensors: Sequence[torch.Tensor], out: Any) -> None:
        """Remember what was computed from such a value, unless it needs gradients."""
        if self._tensors and self.among(tensors):
            found = filter(torch.is_floating_point, tensors_in(out))
            self._tensors |= {id(t): t for t in found if not t.requires_grad}

    def among(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of the tensors is such a value."""
        return any(id(tensor) in self._tensors for tensor in tensors)

    def are_seen(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether this function would tell Python of the assignment."""
        return name in SEES and self.among(tensors)
