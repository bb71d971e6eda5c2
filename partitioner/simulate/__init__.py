"""Simulate: a schedule and its price → step time, bubble, in-flight memory, timeline.

Plain numbers: only ``from_deepspeed``, which is not imported here, knows torch.
"""

from __future__ import annotations

from partitioner.simulate.assigned import price_assignment
from partitioner.simulate.chrome import chrome_trace
from partitioner.simulate.generate import gpipe, interleaved, zero_bubble
from partitioner.simulate.grid import grid
from partitioner.simulate.instructions import Compute, Exchange, Schedule, Transfer
from partitioner.simulate.price import ChunkPrice, PipelinePrice
from partitioner.simulate.run import simulate
from partitioner.simulate.simulation import Event, RankUse, Simulation

__all__ = [
    "ChunkPrice",
    "Compute",
    "Event",
    "Exchange",
    "PipelinePrice",
    "RankUse",
    "Schedule",
    "Simulation",
    "Transfer",
    "chrome_trace",
    "gpipe",
    "grid",
    "interleaved",
    "price_assignment",
    "simulate",
    "zero_bubble",
]
