"""Train a small model under the engines and optimizers that a plan may be given."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import PartitionerError, Plan, RuntimeGuardError, partition
from tests.distributed.tied_model import (
    MICRO_BATCHES,
    loss_of,
    make_model,
    micro_batches,
)
from tests.runtime.cuda_graphs.call_again import CallAgain

__all__ = ["ENGINES", "Engine", "Outcome", "train_on", "train_original", "train_stages"]

CLIPPING = 0.05

SPECIAL = "blocks.0.outside.weight"
RULES: list[dict[str, Any]] = [
    {"params": ["*.bias", nn.LayerNorm], "weight_decay": 0.0},
    {"params": SPECIAL, "lr": 3e-3},  # on the first rank alone
]
"""And the rest: weight decay, and the optimizer's own learning rate."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How one engine differs from the plain one.

    Args:
        dtype: What the plan is for.
        config: Entries of DeepSpeed's configuration.
        module: Arguments of ``plan.pipeline_module``.
        options: Arguments of ``partition``.
        lengths: Sequence lengths of the micro-batches.
        own: Whether DeepSpeed makes the optimizer from the configuration.
        stages: Pipeline ranks.
        plain: Whether the engine is DeepSpeed's own.
        graphs: Whether stages are replayed as CUDA graphs; on the CPU by a stand-in.
    """

    dtype: str = "float32"
    config: Mapping[str, Any] = field(default_factory=dict)
    module: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = (5,)
    own: bool = False
    stages: int = 2
    plain: bool = False
    graphs: bool = False


QUIET = {"steps_per_print": 10**9}
ZERO = {"zero_optimization": {"stage": 1}}
OFFLOAD = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
CLIP = {"gradient_clipping": CLIPPING}
FP32_SUM = {"data_types": {"grad_accum_dtype": "fp32"}}

DUAL = {
    "schedule": "dualpipev",
    # The tied blocks are on different ranks, embedding and head on the same one.
    "pin": {f"blocks.{stage}": stage for stage in range(3)} | {"head": 3},
}
EAGER = {"schedule": "eager-1f1b"}
AGAIN = {"checkpointing": "all"}

ENGINES: dict[str, Engine] = {
    "fp32-clip": Engine(config=CLIP),
    "fp32-zero-clip": Engine(config={**ZERO, **CLIP}),
    "fp32-offload-clip": Engine(config={**OFFLOAD, **CLIP}),
    "fp32-offload-own": Engine(config=OFFLOAD, own=True),
    "bf16-clip": Engine(dtype="bfloat16", config=CLIP),
    "bf16-zero-clip": Engine(dtype="bfloat16", config={**ZERO, **CLIP}),
    "bf16-zero-fp32-clip": Engine(
        dtype="bfloat16", config={**ZERO, **CLIP, **FP32_SUM}
    ),
    "bf16-offload-clip": Engine(dtype="bfloat16", config={**OFFLOAD, **CLIP}),
    "dual-clip": Engine(options=DUAL, config=CLIP),
    "dual-compiled-recomputed": Engine(
        options={**DUAL, **AGAIN}, module={"compile": {"backend": "aot_eager"}}
    ),
    "dual-zero-clip": Engine(options=DUAL, config={**ZERO, **CLIP}),
    "bf16-dual-zero-clip": Engine(
        dtype="bfloat16", options=DUAL, config={**ZERO, **CLIP}
    ),
    "fp32-eager-clip": Engine(options=EAGER, config=CLIP),
    "bf16-eager-zero-clip": Engine(
        dtype="bfloat16", options=EAGER, config={**ZERO, **CLIP}
    ),
    "eager-4": Engine(options={**EAGER, **AGAIN}, stages=4),
    "compiled-recomputed": Engine(
        module={"compile": True}, options={**AGAIN, "leaf": ["blocks.1"]}
    ),
    "compiled-zero": Engine(module={"compile": {"backend": "aot_eager"}}, config=ZERO),
    "graphs-clip": Engine(graphs=True, config=CLIP),
    "bf16-graphs-clip": Engine(graphs=True, dtype="bfloat16", config=CLIP),
    "graphs-compiled": Engine(
        graphs=True, module={"compile": {"backend": "aot_eager"}}
    ),
    "dual-graphs-clip": Engine(graphs=True, options=DUAL, config=CLIP),
    "graphs-eager-recomputed": Engine(graphs=True, options={**EAGER, **AGAIN}),
    "dynamic": Engine(
        module={"dynamic_shape": True}, lengths=(5, 7, 2), plain=True, config=CLIP
    ),
    "dynamic-4": Engine(
        module={"dynamic_shape": True},
        options=AGAIN,
        lengths=(5, 2, 7),
        stages=4,
        plain=True,
    ),
}


@dataclass(kw_only=True)
class Outcome:
    """Losses and norms by step, the groups and the final state of a run."""

    losses: list[float]
    norms: list[float]
    state: dict[str, Tensor]
    evaluated: float = 0.0
    groups: list[tuple[int, float, float]] = field(default_factory=list)
    """(tensors, lr, weight decay) of each group, as the engine has them."""
    released: bool = False
    """Whether nothing kept the engine once it was destroyed."""
    replayed: list[int] = field(default_factory=list)
    """Forwards of each segment that were replayed, if any are to be."""


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4, weight_decay=0.1)


def train_original(replicas: int, engine: Engine) -> Outcome:
    """Train the model in this process, in float32, with the same groups."""
    data = [micro_batches(replica, engine.lengths) for replica in range(replicas)]
    return train_on(data, engine.config.get("gradient_clipping") or float("inf"))


def train_on(data: list[list[list[Any]]], limit: float = float("inf")) -> Outcome:
    """Train the model on batches, by replica and step, clipped to a norm."""
    model = make_model()
    named = dict(model.named_parameters())
    groups: list[list[str]] = [[], [], []]
    for name in named:
        plain = name.endswith(".bias") or ".norm." in name
        groups[0 if plain else 1 if name == SPECIAL else 2].append(name)
    options: list[dict[str, Any]] = [{"weight_decay": 0.0}, {"lr": 3e-3}, {}]
    optimizer = adamw(
        [
            {"params": [named[name] for name in names], **option}
            for names, option in zip(groups, options, strict=True)
        ]
    )
    outcome = Outcome(losses=[], norms=[], state={})
    for step in zip(*data, strict=True):
        optimizer.zero_grad()
        losses = [loss_of(model(x), y) for replica in step for x, y in replica]
        loss = torch.stack(losses).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        outcome.losses.append(loss.item())
        outcome.norms.append(norm.item())
    outcome.state = {name: value.detach().clone() for name, value in named.items()}
    with torch.no_grad():
        firsts = [loss_of(model(x), y) for replica in data for x, y in replica[0]]
    outcome.evaluated = torch.stack(firsts).mean().item()
    return outcome


def plan_for(case: Engine) -> Plan:
    """Return the case's plan, for a fresh model."""
    options = {"dtype": case.dtype, "stages": case.stages, **case.options}
    key = repr(options)
    if key not in _PLANS:
        _PLANS[key] = _planned(options)
    plan = _PLANS[key]
    # The last engine may have cast it.
    plan.graph.model.to(torch.float32).load_state_dict(make_model().state_dict())
    plan.graph.model.zero_grad()
    return plan


_PLANS: dict[str, Plan] = {}


def _planned(options: dict[str, Any]) -> Plan:
    return partition(
        make_model(),
        example_inputs=torch.zeros(3, 5, dtype=torch.int64),
        micro_batches=MICRO_BATCHES,
        device="cpu",
        **options,
    )


def train_stages(names: list[str]) -> list[Outcome]:
    """Train this rank's stage under each of the engines."""
    return [train_stage(ENGINES[name]) for name in names]


def train_stage(case: Engine) -> Outcome:
    plan = plan_for(case)
    config = {**QUIET, **case.config}
    if case.own:
        params = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, "torch_adam": True}
        config["optimizer"] = {"type": "AdamW", "params": params}
    optimizer = None if case.own else adamw
    if case.plain:
        engine = plain_engine(plan, case.module, config)
    else:
        engine, *_ = plan.initialize(
            loss_of,
            config=config,
            module=case.module,
            groups=RULES,
            optimizer=optimizer,
            cuda_graphs=case.graphs and torch.cuda.is_available(),
        )
        if case.graphs and not torch.cuda.is_available():
            engine.start_cuda_graphs(engine.sums, recorder=stand_in(engine))
    outcome = Outcome(losses=[], norms=[], state={})
    data = micro_batches(engine.grid.get_data_parallel_id(), case.lengths)
    for batch in data:
        outcome.losses.append(engine.train_batch(iter(batch)).item())
        norm = engine.get_global_grad_norm()
        outcome.norms.append(0.0 if norm is None else float(norm))
    outcome.state = {
        name: value.detach().clone()
        for name, value in engine.module.original_named_parameters()
    }
    outcome.groups = [
        (len(group["params"]), group["lr"], group["weight_decay"])
        for group in engine.optimizer.param_groups
    ]
    outcome.replayed = [
        segment.replays.replayed
        for segment in engine.module.segments()
        if segment.replays is not None
    ]
    outcome.evaluated = engine.eval_batch(iter(data[0])).item()
    engine.train_batch(iter(data[0]))  # its loss has a graph, evaluation's has none
    engine.destroy()
    there = weakref.ref(engine)
    del engine
    for _ in range(2):  # DeepSpeed's bfloat16 parameters refer to themselves
        gc.collect()
    outcome.released = there() is None
    dist.barrier()
    return outcome


def stand_in(engine: Any) -> CallAgain:
    """Return what records for an engine without CUDA."""

    def written() -> Iterator[Tensor]:
        yield from engine.module.buffers()
        trained = [each for each in engine.module.parameters() if each.requires_grad]
        yield from engine.sums.memory(trained).values()

    return CallAgain(written)


def plain_engine(
    plan: Plan, module: Mapping[str, Any], config: Mapping[str, Any]
) -> Any:
    """Return DeepSpeed's own engine, as it is made without plan.initialize()."""
    stage = plan.pipeline_module(loss_of, **module)
    settings = plan.ds_config(**config)
    del settings["optimizer"]
    engine, *_ = deepspeed.initialize(
        model=stage,
        optimizer=adamw(plan.parameter_groups(stage, RULES)),
        config=settings,
    )
    engine.set_batch_fn(plan.batch_fn)
    return engine


def refusals() -> list[str]:
    """Return what is said of things that cannot be, each on every rank."""
    dual = plan_for(Engine(options=DUAL))
    engine, *_ = dual.initialize(loss_of, optimizer=adamw, config=QUIET)
    mixed = micro_batches(0, (5, 7))[0]
    tries: list[Callable[[], Any]] = [
        lambda: dual.pipeline_module(loss_of, dynamic_shape=True),
        lambda: engine.eval_batch(iter(mixed), num_micro_batches=2),
        lambda: engine.train_batch(iter(mixed)),
        _initialize_without_a_group,
        *(lambda more=more: _initialize_eager(**more) for more in NOT_EAGER),
        *(lambda more=more: _initialize_replayed(**more) for more in NOT_REPLAYED),
    ]
    return [_told(attempt) for attempt in tries]


NOT_EAGER: list[dict[str, Any]] = [
    {"zero_bubble": True},
    {"module": {"dynamic_shape": True}},
]


def _initialize_eager(**more: Any) -> None:
    plan = plan_for(Engine(options=EAGER))
    plan.initialize(loss_of, optimizer=adamw, config=QUIET, **more)


NOT_REPLAYED: list[dict[str, Any]] = [
    {"zero_bubble": True},
    {"check_finite": True},
    {"config": {**QUIET, **ZERO}},
    {},
]


def _initialize_replayed(**more: Any) -> None:
    plan = plan_for(Engine())
    arguments = {"optimizer": adamw, "config": QUIET, "cuda_graphs": True, **more}
    plan.initialize(loss_of, **arguments)


def _initialize_without_a_group() -> None:
    def by_hand(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        mine = parameters[1:] if dist.get_rank() else parameters[:0]
        return adamw([{"params": parameters[:1]}, {"params": mine}])

    plan = plan_for(Engine())
    plan.initialize(loss_of, optimizer=by_hand, config={**QUIET, **ZERO})


def _told(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except PartitionerError as error:
        return str(error)
    return ""


def unreplayed() -> list[str]:
    """Train two batches of a plan for CUDA graphs without any; return the warnings."""
    told: list[str] = []
    log = logging.getLogger("partitioner.runtime.pipeline_module")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        plan = plan_for(Engine(options={"cuda_graphs": True}))
        engine = plain_engine(plan, {}, QUIET)
        for _ in range(2):
            engine.train_batch(iter(micro_batches(0, (5,))[0]))
    finally:
        log.removeHandler(handler)
    return told


def change_shapes() -> tuple[list[float], str]:
    """Train two batches of different shapes, announced, and begin one unannounced."""
    engine = plain_engine(plan_for(Engine()), {}, QUIET)
    losses = []
    for length in (5, 7):
        (batch, *_) = micro_batches(0, (length,))
        losses.append(engine.train_batch(iter(batch)).item())
        engine.reset_activation_shape()
        engine.module.reset_shapes()
    losses.append(engine.train_batch(iter(batch)).item())
    message = ""
    if engine.is_first_stage():  # the others would wait for it
        try:
            engine.train_batch(iter(micro_batches(0, (9,))[0]))
        except RuntimeGuardError as error:
            message = str(error)
    dist.barrier()
    return losses, message
