"""Tune: a priced model and a number of GPUs → the fastest way to use them all."""

from __future__ import annotations

from partitioner.tuning.layouts import Layout
from partitioner.tuning.measure import Devices, measure
from partitioner.tuning.result import Measured, Row, Tuning
from partitioner.tuning.tune import tune

__all__ = ["Devices", "Layout", "Measured", "Row", "Tuning", "measure", "tune"]
