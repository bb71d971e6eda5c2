"""The best value of a name in a checkpoint: stored weights, or their fp32 copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from partitioner.runtime.checkpoint.saved_model import SavedModel
    from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer

__all__ = ["SavedValues"]


@dataclass(frozen=True)
class SavedValues:
    """Chooses between the model's tensors and the optimizer's copies of them."""

    model: SavedModel
    optimizer: SavedOptimizer

    def like(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for a ``state_dict``, as far as there are some."""
        return {
            name: self.as_dtype(name, value.dtype)
            if isinstance(value, Tensor)
            else self.model.value(name)
            for name, value in held.items()
            if name in self.model
        }

    def as_dtype(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a tensor in a dtype: as stored if it is stored so, else from fp32."""
        stored: Tensor = self.model.value(name)
        if stored.dtype == dtype:
            return stored.detach()
        master = self.optimizer.master(name)
        return (stored if master is None else master).detach().to(dtype)

    def precise(self, name: str) -> Tensor:
        """Return a parameter's most precise value."""
        master = self.optimizer.master(name)
        if master is not None:
            return master
        stored: Tensor = self.model.value(name)
        return stored.detach()
