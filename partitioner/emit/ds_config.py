"""A DeepSpeed configuration that fits the plan, with nothing left to a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from partitioner.graph import ModelGraph
    from partitioner.options import Options

__all__ = ["ds_config"]

LEARNING_RATE = 1e-4
"""A starting point; the user's own optimizer or ``optimizer=`` entry replaces it."""

_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    # torch_adam: DeepSpeed's fused kernel would be compiled at start.
    "adamw": ("AdamW", {"weight_decay": 0.01, "torch_adam": True}),
    "adam": ("Adam", {"torch_adam": True, "adam_w_mode": False}),
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
}
_PRECISION = {torch.bfloat16: "bf16", torch.float16: "fp16"}
MAX_ZERO_STAGE = 1


def ds_config(
    graph: ModelGraph, options: Options, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration for ``deepspeed.initialize``.

    Args:
        graph: The recorded model; gives the micro-batch size and the precision.
        options: Gives the micro-batches and the optimizer.
        overrides: Entries to add or replace; dicts are merged into ours.

    Raises:
        OptionError: An override contradicts the plan or DeepSpeed's pipeline engine.
    """
    name, parameters = _OPTIMIZERS[options.optimizer.lower().replace("_", "-")]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": _batch_size(graph),
        "gradient_accumulation_steps": options.micro_batches,
        "optimizer": {"type": name, "params": {"lr": LEARNING_RATE, **parameters}},
        # DeepSpeed clips at 1.0 by default since 0.19.3: a choice for the user.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 0},
    }
    if graph.dtype in _PRECISION:
        config[_PRECISION[graph.dtype]] = {"enabled": True}
    merged = _merge(config, overrides)
    _check(merged, graph, options)
    return merged


def _batch_size(graph: ModelGraph) -> int:
    shape = graph.inputs[0].shape
    return shape[0] if shape else 1


def _merge(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in overrides.items():
        mine = merged.get(key)
        # Another optimizer does not take this one's parameters.
        both = isinstance(mine, dict) and isinstance(value, Mapping)
        if both and key != "optimizer":
            merged[key] = _merge(mine or {}, value)
        else:
            merged[key] = value
    return merged


def _check(config: Mapping[str, Any], graph: ModelGraph, options: Options) -> None:
    steps = config["gradient_accumulation_steps"]
    if steps != options.micro_batches:
        message = (
            f"gradient_accumulation_steps is {steps}, the plan is for "
            f"{options.micro_batches} micro-batches"
        )
        raise OptionError(message, hint=f"partition(…, micro_batches={steps})")
    zero = _section(config, "zero_optimization").get("stage", 0)
    if zero > MAX_ZERO_STAGE:
        message = f"ZeRO stage {zero} does not work with DeepSpeed's pipeline engine"
        raise OptionError(message, hint="use ZeRO stage 0 or 1")
    for dtype, key in _PRECISION.items():
        enabled = bool(_section(config, key).get("enabled", False))
        if enabled == (graph.dtype == dtype):
            continue
        state = "enabled" if enabled else "disabled"
        wanted = str(dtype if enabled else torch.float32).removeprefix("torch.")
        message = f"{key} is {state}, but the plan was made for {graph.dtype}"
        raise OptionError(message, hint=f"partition(…, dtype={wanted!r})")


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key, {})
    if not isinstance(section, Mapping):
        message = f"{key} is {section!r}, not a dict"
        raise OptionError(message, hint="write it as in DeepSpeed's configuration")
    return section
