"""What the chunks and boundaries of a pipeline cost, as the simulator reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partitioner.simulate.instructions import Compute, Transfer

__all__ = ["ChunkPrice", "PipelinePrice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPrice:
    """One micro-batch through one chunk."""

    forward_s: float
    input_gradient_s: float
    """Backward without the weights' gradients."""
    weight_gradient_s: float
    recompute_s: float = 0.0
    """Forward that runs again, before the gradient of the input."""
    in_flight_bytes: int = 0
    """Kept from the forward pass until the last backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePrice:
    """All chunks of a pipeline and the boundaries between them."""

    chunks: tuple[ChunkPrice, ...]
    activation_s: tuple[float, ...]
    """Time of one micro-batch's activations over the boundary after chunk c."""
    gradient_s: tuple[float, ...]
    """Time of their gradients, the other way."""

    def compute_s(self, work: Compute) -> float:
        """Return the duration of a pass."""
        chunk = self.chunks[work.chunk]
        input_gradient_s = chunk.recompute_s + chunk.input_gradient_s
        return {
            "forward": chunk.forward_s,
            "backward": input_gradient_s + chunk.weight_gradient_s,
            "input_gradient": input_gradient_s,
            "weight_gradient": chunk.weight_gradient_s,
        }[work.kind]

    def transfer_s(self, transfer: Transfer) -> float:
        """Return the duration of a message between two ranks."""
        both = {"activation": self.activation_s, "gradient": self.gradient_s}
        return both[transfer.kind][transfer.boundary]
