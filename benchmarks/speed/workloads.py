"""A model to train: the original, its hand-written layers, batches and a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepspeed.pipe import LayerSpec
    from torch import Tensor, nn

__all__ = ["MicroBatch", "Workload"]

MicroBatch = tuple[dict[str, "Tensor"], "Tensor"]
"""The inputs by the names of the model's forward, and the labels."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model, at the sizes of a run.

    Args:
        name: As on the command line.
        model: Builds the original on the current default device.
        layers: The layers of a hand-written pipeline: the model's own modules, as
            whoever knows the model would list them.
        micro_batch: Draws one micro-batch on the CPU.
        loss: Of the tensor that the model makes, and the labels.
        items: Tokens or samples of one micro-batch.
        unit: What ``items`` counts.
        torch_pipelines: torch's own pipelines can run it: they send nothing whose
            dimensions are not in the order of memory.
    """

    name: str
    model: Callable[[], nn.Module]
    layers: Callable[[], list[LayerSpec]]
    micro_batch: Callable[[], MicroBatch]
    loss: Callable[[Tensor, Tensor], Tensor]
    items: int
    unit: str
    torch_pipelines: bool = True

    def model_loss(self, output: Any, labels: Tensor) -> Tensor:
        """Return the loss of the original's output."""
        return self.loss(output.logits, labels)
