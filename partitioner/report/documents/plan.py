"""The document of a plan: ``inspect --json``, ``Plan.to_dict()``, and plan files."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, with_config
from typing_extensions import NotRequired, TypedDict

__all__ = ["CLOSED", "Breakdown", "PlanDocument", "Simulation"]

CLOSED = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""Every key is named here, and its docstring is its description."""


@with_config(CLOSED)
class Provenance(TypedDict):
    """What the plan was made of."""

    fx_partitioner: str
    torch: str
    model_class: str
    fingerprint: str
    """Of the recorded graph; equal graphs have equal ones."""
    solver: str
    proof: str
    """Why no better plan exists, in words; empty: not proven."""
    solve_s: float
    profile: str
    prices: str
    """Where the seconds come from."""
    dtype: str


@with_config(CLOSED)
class Link(TypedDict):
    """What one device has for messages."""

    bytes_per_s: float
    latency_s: float


@with_config(CLOSED)
class ClusterOptions(TypedDict):
    """Nodes of equally many devices."""

    devices_per_node: int
    between_nodes: Link
    within_node: Link | None
    replicas: int


@with_config(CLOSED)
class DeviceOptions(TypedDict):
    """What one rank runs on, relative to the device of the prices."""

    speed: float
    memory_limit_bytes: int | None


@with_config(CLOSED)
class PlanOptions(TypedDict):
    """What was asked for, checked and with defaults filled in."""

    stages: int
    micro_batches: int
    memory_limit_bytes: int | None
    optimizer: str
    checkpointing: Literal["none", "auto", "all"]
    schedule: Literal["1f1b", "eager-1f1b", "dualpipev"]
    solver: Literal["cbc", "highs"]
    gap: float
    time_limit_s: float
    objective: Literal["step", "bottleneck"]
    devices: list[DeviceOptions]
    cluster: ClusterOptions | None
    replicas: int
    zero_stage: int
    offload_optimizer: bool
    cuda_graphs: NotRequired[bool]
    """Stages are replayed as CUDA graphs; files of earlier versions do not say."""
    device: str
    """Name of the profile."""


@with_config(CLOSED)
class Constraints(TypedDict):
    """What was to stay whole or together, as paths of modules."""

    leaf: list[str]
    keep_together: list[list[str]]
    no_cut_inside: list[str]
    pin: list[list[str | int]]
    """Pairs of a path and its stage, negative from the last."""
    equal_stages: list[str]


@with_config(CLOSED)
class GivenFigures(TypedDict):
    """The figures of a cost that were given."""

    forward_flops: NotRequired[float]
    backward_flops: NotRequired[float]
    forward_s: NotRequired[float]
    backward_s: NotRequired[float]
    saved_bytes: NotRequired[float]


@with_config(CLOSED)
class GivenCost(TypedDict):
    """A cost that the user gave, and what it was found to be the cost of."""

    pattern: str
    modules: list[str]
    operators: list[str]
    cost: GivenFigures
    nodes: NotRequired[list[str]]


@with_config(CLOSED)
class Loss(TypedDict):
    """What the loss costs for one micro-batch."""

    forward_flops: int
    backward_flops: int
    forward_s: float
    backward_s: float
    host_s: float
    forward_bytes: int
    backward_bytes: int
    output_bytes: int
    saved_bytes: int
    transient_bytes: int
    parameter_bytes: int
    buffer_bytes: int


@with_config(CLOSED)
class Input(TypedDict):
    """A tensor of a micro-batch."""

    name: str
    shape: list[int]
    dtype: str
    free: list[int]
    """Dimensions that may differ from batch to batch."""


@with_config(CLOSED)
class SimulatedRank(TypedDict):
    """How a rank spends the simulated step."""

    bubble_share: float
    compute_s: float
    communication_s: float
    in_flight: int
    """Micro-batches held at once, at most."""
    in_flight_bytes: int


@with_config(CLOSED)
class Simulation(TypedDict):
    """One step of the schedule, simulated."""

    schedule: str
    step_s: float
    bubble_share: float
    ranks: list[SimulatedRank]


@with_config(CLOSED)
class StageMemory(TypedDict):
    """What a stage's memory is made of."""

    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    optimizer_bytes: int
    static_bytes: int
    """The four above, together."""
    saved_bytes: int
    received_bytes: int
    sent_kept_bytes: int
    wire_bytes: int
    peak_bytes: int
    recompute_peak_bytes: int
    reserved_bytes: int
    transient_bytes: int
    freed_bytes: int
    tail_transient_bytes: int
    step_bytes: int


@with_config(CLOSED)
class Stage(TypedDict):
    """One stage, for one micro-batch."""

    index: int
    modules: list[str]
    parameters: int
    forward_flops: int
    """One multiply-add is two."""
    backward_flops: int
    forward_s: float
    backward_s: float
    recompute_s: float
    communication_s: float
    time_s: float
    memory_bytes: int
    """The peak."""
    memory: StageMemory
    memory_limit_bytes: int | None
    sent_bytes: int
    checkpointed: list[str]
    """Modules whose activations are recomputed in backward."""


@with_config(CLOSED)
class Standing(TypedDict):
    """Where the stages stand in a cluster."""

    nodes: int
    far_boundaries: list[int]


@with_config(CLOSED)
class Value(TypedDict):
    """A tensor that crosses a boundary."""

    name: str
    unit: str
    shape: list[int]
    dtype: str
    bytes: int
    differentiable: bool
    source: str


@with_config(CLOSED)
class Boundary(TypedDict):
    """What one stage sends to the next."""

    after_stage: int
    between_nodes: bool
    values: list[Value]


@with_config(CLOSED)
class Tie(TypedDict):
    """A parameter that several stages hold."""

    parameter: str
    stages: list[int]


Size = int | float | list[Any]
"""A number, ``["size", k]``, or an operator's name and what it is applied to."""


@with_config(CLOSED)
class Guard(TypedDict):
    """A relation of sizes that every batch must keep."""

    relation: str
    left: Size
    right: Size
    text: str
    module: str
    source: str


@with_config(CLOSED)
class Unpriced(TypedDict):
    """An operator whose FLOPs are not known."""

    operator: str
    count: int
    where: str


@with_config(CLOSED)
class PlanDocument(TypedDict):
    """A plan. Seconds, FLOPs and bytes are those of one micro-batch but for steps."""

    schema_version: Literal[1]
    kind: Literal["fx-partitioner plan"]
    provenance: Provenance
    options: PlanOptions
    constraints: Constraints
    costs: list[GivenCost]
    loss: Loss | None
    casts: bool
    """The engine trains in another dtype than the model's."""
    inputs: list[Input]
    objective_s: float
    """The step by the formula that plans are made with."""
    bound_s: float
    """No plan's step is shorter, by the same prices."""
    gap: float
    bubble_share: float
    simulation: Simulation
    bottleneck_stage: int
    """The slowest of the slowest rank."""
    stages: list[Stage]
    cluster: Standing | None
    boundaries: list[Boundary]
    ties: list[Tie]
    guards: list[Guard]
    assumptions: list[str]
    warnings: list[str]
    unpriced: list[Unpriced]
    units: dict[str, int]
    """Stage of each unit of the recorded graph."""
    recomputed_units: list[str]


@with_config(CLOSED)
class Part(TypedDict):
    """What one part of the model costs."""

    name: str
    kind: str
    calls: int
    source: str
    stages: list[int]
    parameters: int
    forward_flops: int
    backward_flops: int
    forward_s: float
    backward_s: float
    saved_bytes: int


@with_config(CLOSED)
class Breakdown(TypedDict):
    """With ``--by``."""

    by: Literal["module", "operator", "node"]
    sort: Literal["forward", "backward", "memory", "flops", "params"] | None
    total: Part
    rows: list[Part]
