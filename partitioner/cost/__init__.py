"""Price: ModelGraph → CostedGraph, and CostedGraph → the solver's Problem."""

from __future__ import annotations

from partitioner.cost.given import Cost, find_given, with_given
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
    "Measurements",
    "PriceSource",
    "Units",
    "find_given",
    "measure",
    "price",
    "problem",
    "problem_for",
    "resolve",
    "units",
    "with_given",
]
