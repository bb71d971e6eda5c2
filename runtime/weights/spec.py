"""A layer spec whose segment gets its weights when it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepspeed.pipe import LayerSpec

if TYPE_CHECKING:
    from torch import nn

    from partitioner.runtime.segment import Segment, SegmentBody
    from partitioner.runtime.weights.stage import StageWeights

__all__ = ["WeightedSpec"]


class WeightedSpec(LayerSpec):
    """DeepSpeed's spec of a segment, built around materialised modules.

    Args:
        kind: The segment's class.
        body: Its body, whose tensors may be on ``meta``.
        weights: The weights of its stage.
        **boundaries: Further arguments of the class.
    """

    def __init__(
        self,
        kind: type[Segment],
        body: SegmentBody,
        weights: StageWeights,
        **boundaries: Any,
    ) -> None:
        super().__init__(kind, body, **boundaries)
        self._weights = weights

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002, FBT001, FBT002 - LayerSpec's signature
        """Read or make the weights, and build the segment around them.

        Raises:
            WeightsError: One can be neither read nor made.
        """
        (body,) = self.module_args
        segment: nn.Module = self.typename(
            self._weights.give(body), **self.module_kwargs
        )
        return segment
