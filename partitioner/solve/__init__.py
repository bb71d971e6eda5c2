"""Problem → Assignment: places units on stages by dynamic and integer programming."""

from __future__ import annotations

from partitioner.solve.check import check
from partitioner.solve.choose import solve
from partitioner.solve.parts import Constraint, Device, Tie, Unit, Value
from partitioner.solve.problem import Assignment, Problem
from partitioner.solve.replicas import Link, replica_sums_s
from partitioner.solve.room import added_bytes, check_room, needed_bytes
from partitioner.solve.score import RankScore, Score, StageScore, score

__all__ = [
    "Assignment",
    "Constraint",
    "Device",
    "Link",
    "Problem",
    "RankScore",
    "Score",
    "StageScore",
    "Tie",
    "Unit",
    "Value",
    "added_bytes",
    "check",
    "check_room",
    "needed_bytes",
    "replica_sums_s",
    "score",
    "solve",
]
