"""Ways to cut a list of whole layers that do not look at what a plan looks at."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
from deepspeed.runtime.utils import partition_balanced, partition_uniform

from partitioner.solve.order_dp import least_bottleneck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.assess.layers import Layer

__all__ = ["RIVALS", "stages_of_layers"]


def stages_of_layers(
    layers: Sequence[Layer], stages: int, cut: Callable[..., list[int]]
) -> list[int]:
    """Return the stage of each layer.

    Args:
        layers: In order.
        stages: Number of stages.
        cut: A value of ``RIVALS``.
    """
    bounds = cut(layers, stages)
    return [bisect_right(bounds, layer, 1) - 1 for layer in range(len(layers))]


def _uniform(layers: Sequence[Layer], stages: int) -> list[int]:
    return list(partition_uniform(len(layers), stages))


def _parameters(layers: Sequence[Layer], stages: int) -> list[int]:
    weights = [layer.parameters for layer in layers]
    return [int(bound) for bound in partition_balanced(weights, stages)]


def _flops(layers: Sequence[Layer], stages: int) -> list[int]:
    """Minimise the FLOPs of the largest stage; no stage stays empty."""
    if len(layers) <= stages:
        return _uniform(layers, stages)
    sums = np.cumsum([0, *(float(layer.flops) for layer in layers)])
    costs = np.where(
        np.tri(len(sums), k=0, dtype=bool), np.inf, sums[None, :] - sums[:, None]
    )
    sliced = least_bottleneck([costs] * stages)
    return _uniform(layers, stages) if sliced is None else list(sliced.cuts)


def _equal_blocks(layers: Sequence[Layer], stages: int) -> list[int]:
    """Give every stage as many blocks; what is before or after goes to the ends."""
    blocks = [index for index, layer in enumerate(layers) if layer.repeated]
    if not blocks:
        return _uniform(layers, stages)
    inner = partition_uniform(len(blocks), stages)[1:-1]
    starts = [*blocks, len(layers)]
    return [0, *(starts[bound] for bound in inner), len(layers)]


RIVALS: dict[str, Callable[[Sequence[Layer], int], list[int]]] = {
    "DeepSpeed uniform": _uniform,
    "DeepSpeed parameters": _parameters,
    "equal FLOPs": _flops,
    "equal blocks": _equal_blocks,
}
"""(layers, stages) → bounds, ``stages + 1`` numbers. The first two are what
``PipelineModule(partition_method=...)`` does with such a list; the last one takes every
block to take equally long, and everything else no time."""
