"""Weights → a stage's own parameters and buffers, without the rest of the model."""

from __future__ import annotations

from partitioner.runtime.weights.given import (
    GivenWeights,
    InitialWeights,
    open_weights,
)
from partitioner.runtime.weights.spec import WeightedSpec
from partitioner.runtime.weights.stage import StageWeights
from partitioner.runtime.weights.wanted import WeightSource

__all__ = [
    "GivenWeights",
    "InitialWeights",
    "StageWeights",
    "WeightSource",
    "WeightedSpec",
    "open_weights",
]
