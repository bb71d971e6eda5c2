"""Time a model's distinct operations and blocks on the device at hand."""

from __future__ import annotations

from partitioner.cost.measure.run import measure

__all__ = ["measure"]
