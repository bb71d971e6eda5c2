"""Timeline: what was measured of a run → where its time went, and a better plan."""

from __future__ import annotations

from partitioner.timeline.forecast import forecast
from partitioner.timeline.replan import measured_costs, replanned, without_measured
from partitioner.timeline.trace_file import Trace
from partitioner.timeline.usage import RunUse, usage

__all__ = [
    "RunUse",
    "Trace",
    "forecast",
    "measured_costs",
    "replanned",
    "usage",
    "without_measured",
]
