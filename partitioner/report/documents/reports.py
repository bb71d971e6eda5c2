"""The documents of ``inspect``, ``replan``, ``verify`` and ``tune``."""

from __future__ import annotations

from typing import Literal

from pydantic import with_config
from typing_extensions import NotRequired, TypedDict

from partitioner.report.documents.plan import (
    CLOSED,
    Breakdown,
    PlanDocument,
    Simulation,
)

__all__ = [
    "Inspection",
    "Replanning",
    "Tuning",
    "Verification",
]

Error = float | Literal["inf", "-inf", "nan"]
"""JSON has no number for these three; ``float()`` reads them."""


@with_config(CLOSED)
class Split(TypedDict):
    """One way to put the model on stages, scored like the plan."""

    name: str
    bottleneck_s: float
    step_s: float
    simulated_s: float
    bubble_share: float
    memory_bytes: int
    recompute_s: float
    faults: list[str]
    """What keeps it from being trained."""


@with_config(CLOSED)
class Comparison(TypedDict):
    """With ``--compare``; the plan comes first."""

    splits: list[Split]


@with_config(CLOSED)
class Limit(TypedDict):
    """One thing that keeps the step from being shorter."""

    kind: Literal["unit", "memory", "communication", "constraint"]
    words: str
    step_s: float | None


@with_config(CLOSED)
class Variant(TypedDict):
    """The best plan for a changed problem, or why there is none."""

    change: str
    step_s: float | None
    simulated_s: float | None
    bubble_share: float | None
    memory_bytes: int | None
    reason: str


@with_config(CLOSED)
class Explanation(TypedDict):
    """With ``--explain``."""

    step_s: float
    bound_s: float
    proof: str
    even_s: float
    even_bubble_share: float
    limits: list[Limit]
    variants: list[Variant]


@with_config(CLOSED)
class Timeline(TypedDict):
    """With ``--timeline``."""

    rows: list[str]
    legend: str


@with_config(CLOSED)
class Inspection(PlanDocument):
    """A plan, and what else was asked for."""

    breakdown: NotRequired[Breakdown]
    timeline: NotRequired[Timeline]
    comparison: NotRequired[Comparison]
    explanation: NotRequired[Explanation]


@with_config(CLOSED)
class Replanning(PlanDocument):
    """The plan by measured times."""

    before: Simulation
    """Of the plan that ran, by the same times."""


@with_config(CLOSED)
class ModeErrors(TypedDict):
    """The largest differences in one mode, relative."""

    max_output_error: Error
    max_gradient_error: Error
    max_buffer_error: Error


@with_config(CLOSED)
class Modes(TypedDict):
    """Both modes of a module."""

    train: ModeErrors
    eval: ModeErrors


@with_config(CLOSED)
class Verification(TypedDict):
    """The cut model compared with the original."""

    schema_version: Literal[1]
    kind: Literal["fx-partitioner verification"]
    ok: bool
    tolerance: float
    modes: Modes
    per_parameter: dict[str, Error]
    """Largest difference of each parameter's gradient."""


@with_config(CLOSED)
class Row(TypedDict):
    """One layout; figures are null where it has no plan."""

    name: str
    stages: int
    replicas: int
    schedule: str
    zero_stage: int
    micro_batches: int | None
    step_s: float | None
    replica_sums_s: float | None
    samples_per_s: float | None
    efficiency: float | None
    bubble_share: float | None
    recomputes: bool | None
    memory_bytes: int | None
    reason: str
    """Why it is out."""
    advice: str
    measured_step_s: float | None
    """Median of a few steps that were run, with the optimizer's."""
    measured_memory_bytes: int | None
    """Null on a CPU."""
    measured_reason: str
    """Why there is no such step, if there was to be one."""


@with_config(CLOSED)
class Tuning(TypedDict):
    """All ways to use some GPUs."""

    schema_version: Literal[1]
    kind: Literal["fx-partitioner tuning"]
    model_class: str
    profile: str
    dtype: str
    batch: int
    """Samples of one step."""
    micro_batch_samples: int
    gpus: int
    nodes: int
    memory_limit_bytes: int
    one_gpu_step_s: float | None
    rows: list[Row]
    measured_on: str | None
    """Device of the measured steps; null: none was to be measured."""
    best: int | None
    """Index of the fastest row, of measured ones by the clock; null: nothing fits."""
    launch: str | None
