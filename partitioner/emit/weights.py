"""Layers and a source of weights → layer specs that materialise their own stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from deepspeed.pipe import LayerSpec

from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment
from partitioner.runtime.weights import (
    StageWeights,
    WeightedSpec,
    WeightSource,
    open_weights,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from partitioner.emit.layers import Layer, Layers
    from partitioner.graph import ModelGraph
    from partitioner.runtime.segment import SegmentBody
    from partitioner.runtime.weights import GivenWeights

__all__ = ["Weighted", "segment_spec", "weighted"]


def segment_spec(layer: Layer, weights: StageWeights | None = None) -> LayerSpec:
    """Return the spec of a segment.

    Args:
        layer: The segment with its boundaries.
        weights: What gives it its weights when it is built; None: it has them.
    """
    kind = CheckpointedSegment if layer.body.checkpointed else Segment
    ends = {
        "receive": layer.receive,
        "send": layer.send,
        "is_first": layer.is_first,
    }
    if weights is None:
        return LayerSpec(kind, layer.body, **ends)
    return WeightedSpec(kind, layer.body, weights, **ends)


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """What is built of layers and a source of weights."""

    specs: list[LayerSpec]
    """Each gets its weights when it is built: a rank builds those of its own stage."""
    head: SegmentBody | None
    """The loss part, which holds no parameter; its buffers have their values."""
    graph: ModelGraph
    source: WeightSource

    def unplaced(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the values of what no segment holds, for rank 0's checkpoints.

        Args:
            tensors: The model's own, by name. What is on ``meta`` and not in files
                stays there, and so does all of it on other ranks.
        """
        if dist.is_initialized() and dist.get_rank() != 0:
            return dict(tensors)
        found = {}
        for name, tensor in tensors.items():
            first = self.graph.aliases.get(name, name)
            names = [name, *(n for n, f in self.graph.aliases.items() if f == first)]
            mapped = self.source.mapped(names, tensor)
            found[name] = tensor if mapped is None else mapped.to(tensor.dtype)
        return found


def weighted(
    graph: ModelGraph, layers: Layers, given: GivenWeights, *, twins: bool = False
) -> Weighted:
    """Find out what gives each stage its weights, and that it has all of them.

    Args:
        graph: The recorded model.
        layers: Its segments.
        given: What the user passed as ``weights``.
        twins: Whether rank r of S builds the stages r and 2S - 1 - r (DualPipeV): what
            they share is made once.

    Raises:
        OptionError: ``given`` is no source.
        WeightsError: There is no such file, or it lacks something.
    """
    source = open_weights(given, graph.model)
    last = len(layers.parts) - 2

    def builder(layer: Layer) -> int:
        return min(layer.stage, last - layer.stage) if twins else layer.stage

    def held(bodies: Sequence[SegmentBody]) -> StageWeights:
        return StageWeights(graph.model, graph.aliases, source, bodies)

    bodies: dict[int, list[SegmentBody]] = {}
    for layer in layers.layers:
        bodies.setdefault(builder(layer), []).append(layer.body)
    stages = {number: held(each) for number, each in bodies.items()}
    source.check([each for weights in stages.values() for each in weights.wanted])
    head = layers.head
    if head is not None and (head.modules or head.buffers):
        head = held([head]).give(head)
    specs = [segment_spec(each, stages[builder(each)]) for each in layers.layers]
    return Weighted(specs=specs, head=head, graph=graph, source=source)
