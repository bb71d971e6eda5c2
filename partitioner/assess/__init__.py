"""Assess: how long a plan's step takes, what others would take, and what limits it."""

from __future__ import annotations

from partitioner.assess.case import Case
from partitioner.assess.compare import Comparison, compare
from partitioner.assess.explain import Explanation, explain
from partitioner.assess.predict import SCHEDULES, predict

__all__ = [
    "SCHEDULES",
    "Case",
    "Comparison",
    "Explanation",
    "compare",
    "explain",
    "predict",
]
