"""Train a small model under the engines and optimizers that a plan may be given."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Plan, partition

__all__ = ["ENGINES", "Engine", "Outcome", "plan_for", "train_original", "train_stages"]

VOCABULARY, WIDTH, STAGES, MICRO_BATCHES, STEPS = 13, 8, 2, 4, 4
CLIPPING = 0.05


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inside = nn.Linear(WIDTH, 2 * WIDTH)
        self.outside = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outside(torch.tanh(self.inside(self.norm(x))))


class Tied(nn.Module):
    """Two blocks between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(self.embed(ids)))
        return result


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1
    )


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Tied().train()


def micro_batches(replica: int, lengths: Sequence[int] = (5,)) -> list[list[Any]]:
    """Return (inputs, labels) by step, of a replica; sequence lengths take turns."""
    generator = torch.Generator().manual_seed(replica)

    def make(index: int) -> tuple[Tensor, Tensor]:
        shape = (3, lengths[index % len(lengths)])
        pair = [torch.randint(0, VOCABULARY, shape, generator=generator) for _ in "ab"]
        return pair[0], pair[1]

    return [
        [make(step + index) for index in range(MICRO_BATCHES)] for step in range(STEPS)
    ]


RULES: list[dict[str, Any]] = [
    {"params": ["*.bias", nn.LayerNorm], "weight_decay": 0.0},
    {"params": "blocks.0.*side.weight", "lr": 3e-3},  # nothing of it on the last stage
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
    """

    dtype: str = "float32"
    config: Mapping[str, Any] = field(default_factory=dict)
    module: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    lengths: tuple[int, ...] = (5,)
    own: bool = False


ZERO = {"zero_optimization": {"stage": 1}}
OFFLOAD = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
CLIP = {"gradient_clipping": CLIPPING}
FP32_SUM = {"data_types": {"grad_accum_dtype": "fp32"}}

ENGINES: dict[str, Engine] = {
    "fp32": Engine(),
    "fp32-clip": Engine(config=CLIP),
    "fp32-zero-clip": Engine(config={**ZERO, **CLIP}),
    "fp32-offload-clip": Engine(config={**OFFLOAD, **CLIP}),
    "fp32-zero-own": Engine(config=ZERO, own=True),
    "fp32-offload-own": Engine(config=OFFLOAD, own=True),
    "bf16": Engine(dtype="bfloat16"),
    "bf16-zero-clip": Engine(dtype="bfloat16", config={**ZERO, **CLIP}),
    "bf16-zero-fp32-clip": Engine(
        dtype="bfloat16", config={**ZERO, **CLIP, **FP32_SUM}
    ),
    "bf16-offload-clip": Engine(dtype="bfloat16", config={**OFFLOAD, **CLIP}),
}


@dataclass(kw_only=True)
class Outcome:
    """Losses and norms by step, the groups and the final state of a run."""

    losses: list[float]
    norms: list[float]
    state: dict[str, Tensor]
    groups: list[tuple[int, float, float]] = field(default_factory=list)
    """(tensors, lr, weight decay) of each group, as the engine has them."""


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-4, weight_decay=0.1)


def train_original(replicas: int, engine: Engine) -> Outcome:
    """Train the model in this process, in float32, with the same groups."""
    model = make_model()
    named = dict(model.named_parameters())
    groups: list[list[str]] = [[], [], []]
    for name in named:
        special = name.startswith("blocks.0") and name.endswith("side.weight")
        plain = name.endswith(".bias") or ".norm." in name
        groups[0 if plain else 1 if special else 2].append(name)
    options: list[dict[str, Any]] = [{"weight_decay": 0.0}, {"lr": 3e-3}, {}]
    optimizer = adamw(
        [
            {"params": [named[name] for name in names], **option}
            for names, option in zip(groups, options, strict=True)
        ]
    )
    outcome = Outcome(losses=[], norms=[], state={})
    data = [micro_batches(replica, engine.lengths) for replica in range(replicas)]
    for step in zip(*data, strict=True):
        optimizer.zero_grad()
        losses = [loss_of(model(x), y) for replica in step for x, y in replica]
        loss = torch.stack(losses).mean()
        loss.backward()
        limit = engine.config.get("gradient_clipping") or float("inf")
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        outcome.losses.append(loss.item())
        outcome.norms.append(norm.item())
    outcome.state = {name: value.detach().clone() for name, value in named.items()}
    return outcome


def plan_for(case: Engine) -> Plan:
    """Return the case's plan, for a fresh model."""
    plan = _planned(**{"dtype": case.dtype, **case.options})
    # The last engine may have cast it.
    plan.graph.model.to(torch.float32).load_state_dict(make_model().state_dict())
    plan.graph.model.zero_grad()
    return plan


@functools.cache
def _planned(**options: Any) -> Plan:
    return partition(
        make_model(),
        STAGES,
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
    config = {"steps_per_print": 10**9, **case.config}
    if case.own:
        params = {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, "torch_adam": True}
        config["optimizer"] = {"type": "AdamW", "params": params}
    engine, *_ = plan.initialize(
        loss_of,
        config=config,
        module=case.module,
        groups=RULES,
        optimizer=None if case.own else adamw,
    )
    outcome = Outcome(losses=[], norms=[], state={})
    replica = engine.grid.get_data_parallel_id()
    for batch in micro_batches(replica, case.lengths):
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
    engine.destroy()
    dist.barrier()
    return outcome
