"""ModelGraph and Placement → Layers: segments, boundaries, ties and the loss part."""

from __future__ import annotations

from partitioner.emit.layers import Layer, Layers, emit
from partitioner.emit.placement import Placement

__all__ = ["Layer", "Layers", "Placement", "emit"]
