"""Price: ModelGraph → CostedGraph, and CostedGraph → the solver's Problem."""

from __future__ import annotations

from partitioner.cost.given import Cost, find_given, with_given
from partitioner.cost.loss import Loss, counted, loss_graph, with_loss
from partitioner.cost.measure import measure
from partitioner.cost.measurements import Measurements
from partitioner.cost.pricing import price
from partitioner.cost.profiles import DeviceProfile, resolve
from partitioner.cost.source import PriceSource
from partitioner.cost.statement import problem, problem_for
from partitioner.cost.units import Units, units

__all__ = [
    "Cost",
    "DeviceProfile",
    "Loss",
    "Measurements",
    "PriceSource",
    "Units",
    "counted",
    "find_given",
    "loss_graph",
    "measure",
    "price",
    "problem",
    "problem_for",
    "resolve",
    "units",
    "with_given",
    "with_loss",
]
