"""Tune: a priced model and a number of GPUs → the fastest way to use them all."""

from __future__ import annotations

from partitioner.tuning.layouts import Layout
from partitioner.tuning.result import Row, Tuning
from partitioner.tuning.tune import tune

__all__ = ["Layout", "Row", "Tuning", "tune"]
