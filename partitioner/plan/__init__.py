"""What was decided: a model's stages, what they cost, and how they are trained."""

from __future__ import annotations

from partitioner.plan.plan import Plan, StagePlan

__all__ = ["Plan", "StagePlan"]
