"""Record what every rank does in a training step, on one clock, in one file."""

from __future__ import annotations

from partitioner.runtime.timeline.record import Forecast, trace_steps

__all__ = ["Forecast", "trace_steps"]
