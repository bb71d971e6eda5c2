"""The document of ``trace``."""

from __future__ import annotations

from typing import Literal

from pydantic import with_config
from typing_extensions import NotRequired, TypedDict

from partitioner.report.documents.plan import CLOSED

__all__ = ["RunUse"]


@with_config(CLOSED)
class StageForecast(TypedDict):
    """What the plan said of one stage."""

    forward_s: float
    backward_s: float
    recompute_s: float


@with_config(CLOSED)
class Forecast(TypedDict):
    """What the plan said of a step."""

    schedule: str
    step_s: float
    bubble_share: float
    stages: list[StageForecast]


@with_config(CLOSED)
class StageUse(TypedDict):
    """What one micro-batch took on a stage."""

    stage: int
    ranks: list[int]
    forward_s: float
    backward_s: float
    recompute_s: float
    modules_s: dict[str, float]


@with_config(CLOSED)
class RankUse(TypedDict):
    """How a rank spent a step."""

    rank: int
    compute_s: float
    bubble_share: float
    waits_s: dict[str, float]
    """By the stage at the other end."""


@with_config(CLOSED)
class GpuUse(TypedDict):
    """How busy a rank's GPU was, in shares of time; or why nobody knows."""

    not_sampled: NotRequired[str]
    samples: NotRequired[int]
    mean: NotRequired[float]
    p10: NotRequired[float]
    p50: NotRequired[float]
    p90: NotRequired[float]


@with_config(CLOSED)
class RunUse(TypedDict):
    """Where the time of a run's steps went."""

    schema_version: Literal[1]
    kind: Literal["fx-partitioner usage"]
    steps: int
    micro_batches: int
    step_s: float
    """From the first pass of any rank to the last: without the optimizer's step."""
    optimizer_s: float
    bubble_share: float
    slowest_stage: int
    slowest_to_others: float
    """How many times the mean of the other stages the slowest takes."""
    replan_advised: bool
    gpu_use: list[GpuUse]
    """By rank."""
    forecast: Forecast | None
    stages: list[StageUse]
    ranks: list[RankUse]
