"""A DeepSpeed configuration that fits the plan, with nothing left to a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partitioner.cost.memory import REDUCE_BUCKET
from partitioner.emit.ds_checks import (
    PRECISION,
    check_config,
    offloads,
    zero_stage,
)

if TYPE_CHECKING:
    from partitioner.graph import ModelGraph
    from partitioner.options import Options

__all__ = ["batch_size", "ds_config"]

LEARNING_RATE = 1e-4
"""A starting point; the user's own optimizer or ``optimizer=`` entry replaces it."""

_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    # torch_adam: DeepSpeed's fused kernel would be compiled at start.
    "adamw": ("AdamW", {"weight_decay": 0.01, "torch_adam": True}),
    "adam": ("Adam", {"torch_adam": True, "adam_w_mode": False}),
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
}


def ds_config(
    graph: ModelGraph, options: Options, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the configuration for ``deepspeed.initialize``.

    Args:
        graph: The recorded model; gives the micro-batch size and the precision.
        options: Gives the micro-batches, the optimizer and ZeRO.
        overrides: Entries to add or replace; dicts are merged into ours.

    Raises:
        OptionError: An override contradicts the plan or DeepSpeed's pipeline engine.
    """
    name, parameters = _OPTIMIZERS[options.optimizer.lower().replace("_", "-")]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch_size(graph),
        "gradient_accumulation_steps": options.micro_batches,
        "optimizer": {"type": name, "params": {"lr": LEARNING_RATE, **parameters}},
        # DeepSpeed clips at 1.0 by default since 0.19.3: a choice for the user.
        "gradient_clipping": 0.0,
        "zero_optimization": _zero(options),
    }
    if graph.dtype in PRECISION:
        config[PRECISION[graph.dtype]] = {"enabled": True}
    merged = _merge(config, overrides)
    check_config(merged, graph, options)
    return {**_allowances(merged, options), **merged}


def _zero(options: Options) -> dict[str, Any]:
    """Return the block of ZeRO that the plan's memory was counted for."""
    if not options.zero_stage:
        return {"stage": 0}
    block: dict[str, Any] = {
        "stage": options.zero_stage,
        "reduce_bucket_size": REDUCE_BUCKET,
        "contiguous_gradients": True,
        # Which a pipeline cannot do: DeepSpeed would turn it off with a warning.
        "overlap_comm": False,
    }
    if options.offload_optimizer:
        block["offload_optimizer"] = {"device": "cpu"}
    return block


def _allowances(config: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return what DeepSpeed must be told so that it does not refuse torch's optimizers.

    With offloading it insists on its own CPU Adam, which has to be compiled, and under
    ZeRO on an optimizer from its list, where SGD is missing although it works.
    """
    allowed: dict[str, Any] = {}
    if offloads(config):
        allowed["zero_force_ds_cpu_optimizer"] = False
    zero = zero_stage(config)
    if zero and options.optimizer.lower().startswith("sgd"):
        allowed["zero_allow_untested_optimizer"] = True
    return allowed


def batch_size(graph: ModelGraph) -> int:
    """Return the samples of one micro-batch: the first size of the first input."""
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
