"""How much of its class's usual rate a kernel reaches, by what it is called with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["arguments", "rate_share"]

_WHOLE_DEVICE_CHANNELS = 256
"""Channels at which batch norm, with one thread block for each, fills a GPU: an H200
reached a quarter of the rate with 64 and no more with 2,048."""
_DROPOUT_SHARE = 0.5
_CAUSAL_SHARE = 2.0
"""Half of the products are skipped, and counted."""
_TILE = 128
"""Positions that a fused attention works on at once: 197 take the time of 256."""
_BATCHED_SHARE = 0.7
"""An H200 reached 35 TFLOP/s in float32 products of 512 × 64 × 512, else 52."""
_POOLING_SHARE = 0.3
"""An H200 reached 0.36 of its usual traffic in a max pooling, 0.22 in its backward."""


def arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an operator's arguments by the names in its schema."""
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 (its only public form is text)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def rate_share(name: str, given: Mapping[str, Any], read: Sequence[Tensor]) -> float:
    """Return the share of its class's rate that a kernel reaches on a GPU.

    Args:
        name: The operator's plain name.
        given: Its arguments by name.
        read: The tensors among them.
    """
    if "batch_norm" in name and read and read[0].dim() > 1:
        return min(1.0, read[0].shape[1] / _WHOLE_DEVICE_CHANNELS)
    if name == "bmm":
        return _BATCHED_SHARE
    if name.startswith("max_pool"):
        return _POOLING_SHARE
    if "attention" in name:
        return _attention_share(given)
    return 1.0


def _attention_share(given: Mapping[str, Any]) -> float:
    share = _CAUSAL_SHARE if given.get("is_causal") else 1.0
    if given.get("dropout_p"):
        share *= _DROPOUT_SHARE
    for tensor in (given["query"], given["key"]):
        positions = tensor.shape[-2]
        share *= positions / (math.ceil(positions / _TILE) * _TILE)
    return share
