"""Scripts of training and evaluation steps, run by an engine or in one process."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import Plan, partition

__all__ = ["Done", "Ran", "Script", "Step", "alone", "on_stages", "replicas_of"]

MomentumSGD = Callable[[Any], torch.optim.Optimizer]


@dataclass(kw_only=True)
class Step:
    """One call of the engine: its micro-batches by replica, and its arguments."""

    batches: list[list[Any]]
    train: bool = True
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Script:
    """A model, its loss and what is done with it.

    Args:
        build: Makes the model.
        steps: Takes the number of replicas.
        loss: Makes the loss; its result is ``loss_fn``.
        forward: ``(model, loss, batch)`` → (loss, further losses) in one process.
        summed: ``(model, batch)`` → (sum over its tokens, their number), where the
            loss is to be the mean over all tokens.
    """

    build: Callable[[], nn.Module]
    steps: Callable[[int], list[Step]]
    forward: Callable[[nn.Module, Any, Any], tuple[Tensor, Mapping[str, Tensor]]]
    loss: Callable[[], Any] = lambda: None
    summed: Callable[[nn.Module, Any], tuple[Tensor, int]] | None = None
    token_weighted: Any = False
    micro_batches: int = 4
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    schedule: Literal["1f1b", "dualpipev"] = "1f1b"
    zero_bubble: bool = False


@dataclass(kw_only=True)
class Done:
    """What one step brought."""

    loss: float | list[float] | None
    norm: float | None = None
    additional: dict[str, float] = field(default_factory=dict)
    outputs: Any = None


@dataclass(kw_only=True)
class Ran:
    """What a script brought."""

    steps: list[Done]
    state: dict[str, Tensor]


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def replicas_of(stages: int) -> int:
    return dist.get_world_size() // stages


# ------------------------------------------------------------------ one process


def alone(script: Script, replicas: int = 1) -> Ran:
    """Run a script with the whole model in this process."""
    model, loss = _built(script)
    modules = (
        {"": model, "loss_fn.": loss} if isinstance(loss, nn.Module) else {"": model}
    )
    steps = optimizer([p for module in modules.values() for p in module.parameters()])
    ran = Ran(steps=[], state={})
    for step in script.steps(replicas):
        if step.train:
            ran.steps.append(_train_alone(script, model, loss, step, steps))
        else:
            ran.steps.append(_evaluate_alone(script, model, loss, step))
    for prefix, module in modules.items():
        for name, value in module.state_dict().items():
            ran.state[prefix + name] = value.clone()
    return ran


def _train_alone(
    script: Script,
    model: nn.Module,
    loss: Any,
    step: Step,
    steps: torch.optim.Optimizer,
) -> Done:
    model.train()
    batches = [batch for replica in step.batches for batch in replica]
    further: dict[str, list[float]] = {}
    steps.zero_grad()
    if script.summed is not None:
        sums, counts = zip(
            *(script.summed(model, batch) for batch in batches), strict=True
        )
        total = torch.stack(sums).sum() / sum(counts)
    else:
        losses = []
        for batch in batches:
            found, others = script.forward(model, loss, batch)
            losses.append(found)
            for name, value in others.items():
                further.setdefault(name, []).append(value.item())
        total = torch.stack(losses).mean()
    total.backward()
    groups = [p for group in steps.param_groups for p in group["params"]]
    limit = script.config.get("gradient_clipping", 0.0) or float("inf")
    norm = nn.utils.clip_grad_norm_(groups, limit).item()
    steps.step()
    means = {name: sum(values) / len(values) for name, values in further.items()}
    return Done(loss=total.item(), norm=norm, additional=means)


@torch.no_grad()
def _evaluate_alone(script: Script, model: nn.Module, loss: Any, step: Step) -> Done:
    model.eval()
    batches = [batch for replica in step.batches for batch in replica]
    outputs = [_outputs(model, batch) for batch in step.batches[0]]
    if not step.options.get("compute_loss", True):
        return Done(loss=None, outputs=outputs)
    if script.summed is not None:
        sums, counts = zip(
            *(script.summed(model, batch) for batch in batches), strict=True
        )
        return Done(loss=(sum(sums) / sum(counts)).item(), outputs=outputs)
    losses = [script.forward(model, loss, batch)[0].item() for batch in batches]
    if step.options.get("reduce_output", "avg") is None:
        return Done(loss=losses, outputs=outputs)
    return Done(loss=sum(losses) / len(losses), outputs=outputs)


def _outputs(model: nn.Module, batch: Any) -> Any:
    return model(**batch) if isinstance(batch, Mapping) else model(batch[0])


def _built(script: Script) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = script.build().train()
    torch.manual_seed(1)
    return model, script.loss()


# --------------------------------------------------------------------- a pipeline


def on_stages(scripts: list[Script], stages: int) -> list[Ran]:
    """Run this rank's stage of every script, one after the other."""
    return [_on_stage(script, stages) for script in scripts]


@functools.cache
def _planned(
    build: Callable[[], nn.Module],
    stages: int,
    micro_batches: int,
    dtype: str | None,
    schedule: Literal["1f1b", "dualpipev"],
) -> tuple[Plan, dict[str, Tensor]]:
    """Plan a model once on each rank; every script starts from the same weights."""
    torch.manual_seed(0)
    model = build().train().to(getattr(torch, dtype or "float32"))
    plan = partition(
        model,
        stages,
        example_inputs=model.example_input_array,
        micro_batches=micro_batches,
        device="h100",
        gap=0.05,
        dtype=dtype,
        schedule=schedule,
    )
    return plan, copy.deepcopy(model.state_dict())


def engine_of(script: Script, stages: int) -> Any:
    """Make the engine of this rank's stage."""
    plan, weights = _planned(
        script.build, stages, script.micro_batches, script.dtype, script.schedule
    )
    model = plan.graph.model
    model.load_state_dict(weights)
    model.train()
    torch.manual_seed(1)
    loss = script.loss()
    if isinstance(loss, nn.Module) and script.dtype is not None:
        loss.to(getattr(torch, script.dtype))
    config = {
        "steps_per_print": 10**9, "zero_allow_untested_optimizer": True, **script.config
    }  # fmt: skip
    engine, *_ = plan.initialize(
        loss,
        config=config,
        optimizer=optimizer,
        token_weighted=script.token_weighted,
        zero_bubble=script.zero_bubble,
    )
    return engine


def _on_stage(script: Script, stages: int) -> Ran:
    engine = engine_of(script, stages)
    ran = Ran(steps=[], state={})
    replica = engine.grid.get_data_parallel_id()
    for step in script.steps(replicas_of(stages)):
        batches = iter(step.batches[replica])
        ran.steps.append(
            _train(engine, batches) if step.train else _evaluate(engine, batches, step)
        )
    for layer in engine.module.local_layers():
        for name, value in layer.state_dict().items():
            ran.state[name] = value.detach().clone()
    engine.destroy()
    dist.barrier()
    return ran


def _train(engine: Any, batches: Any) -> Done:
    loss = engine.train_batch(batches).item()
    further = engine.get_additional_losses() or {}
    return Done(
        loss=loss,
        norm=engine.get_global_grad_norm(),
        additional={name: value.item() for name, value in further.items()},
    )


def _evaluate(engine: Any, batches: Any, step: Step) -> Done:
    count = len(step.batches[0])
    found = engine.eval_batch(batches, num_micro_batches=count, **step.options)
    loss, outputs = found if step.options.get("return_logits") else (found, None)
    if not step.options.get("compute_loss", True):
        return Done(loss=None, outputs=found)
    values = [each.item() for each in loss] if isinstance(loss, list) else loss.item()
    return Done(loss=values, outputs=outputs)
