"""What a DeepSpeed configuration may not say, given the plan and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.casts import mixed_statistics
from partitioner.errors import OptionError

if TYPE_CHECKING:
    from partitioner.graph import ModelGraph
    from partitioner.options import Options

__all__ = [
    "PRECISION",
    "check_accumulation",
    "check_autocast",
    "check_config",
    "check_micro_batches",
    "check_offload_optimizer",
    "check_offload_param",
    "check_precision",
    "check_recomputation",
    "check_zero_stage",
    "offloads",
    "section",
    "zero_stage",
]

PRECISION = {torch.bfloat16: "bf16", torch.float16: "fp16"}
MAX_ZERO_STAGE = 1
"""That a pipeline can have."""
LAST_ZERO_STAGE = 3


def check_config(
    config: Mapping[str, Any], graph: ModelGraph, options: Options
) -> None:
    """Check a whole configuration against the plan.

    Args:
        config: The configuration.
        graph: The recorded model; gives the precision.
        options: Gives the micro-batches.

    Raises:
        OptionError: An entry contradicts the plan or DeepSpeed's pipeline engine; says
            which, and what to write instead.
    """
    check_micro_batches(config, options.micro_batches)
    _check_product(config)
    check_precision(config, graph.dtype)
    _check_statistics(graph)
    check_autocast(config)
    check_zero_stage(config)
    check_offload_param(config)
    check_offload_optimizer(config)
    _check_counted(config, options)
    check_accumulation(config, graph.dtype)
    check_recomputation(config)


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a part of the configuration; empty if it is not there.

    Raises:
        OptionError: It is no mapping.
    """
    found = config.get(key, {})
    if not isinstance(found, Mapping):
        message = f"{key} is {found!r}, not a dict"
        raise OptionError(message, hint="write it as in DeepSpeed's configuration")
    return found


def offloads(config: Mapping[str, Any]) -> str:
    """Return where optimizer states are offloaded to; "" for nowhere."""
    zero = section(config, "zero_optimization")
    device = section(zero, "offload_optimizer").get("device", "none")
    return "" if device in ("none", None) else str(device)


def check_micro_batches(config: Mapping[str, Any], micro_batches: int) -> None:
    """Refuse another number of micro-batches than the plan's.

    Raises:
        OptionError: ``gradient_accumulation_steps`` is another number.
    """
    steps = config["gradient_accumulation_steps"]
    if steps != micro_batches:
        message = (
            f"gradient_accumulation_steps is {steps}, the plan is for "
            f"{micro_batches} micro-batches"
        )
        raise OptionError(message, hint=f"partition(…, micro_batches={steps})")


def _check_product(config: Mapping[str, Any]) -> None:
    steps = config["gradient_accumulation_steps"]
    total = config.get("train_batch_size")
    size = config.get("train_micro_batch_size_per_gpu")
    known = isinstance(total, int) and isinstance(size, int)
    if known and total % (size * steps):
        message = (
            f"train_batch_size is {total}, which is no multiple of {steps} "
            f"micro-batches of {size}"
        )
        raise OptionError(
            message,
            hint=f"give {size} × {steps} × the replicas, or leave it out",
        )


def check_precision(config: Mapping[str, Any], planned: torch.dtype) -> None:
    """Refuse another precision than the plan's.

    Raises:
        OptionError: ``fp16`` or ``bf16`` is enabled, or is not, against the plan.
    """
    for dtype, key in PRECISION.items():
        enabled = bool(section(config, key).get("enabled", False))
        if enabled == (planned == dtype):
            continue
        state = "enabled" if enabled else "disabled"
        wanted = str(dtype if enabled else torch.float32).removeprefix("torch.")
        message = f"{key} is {state}, but the plan was made for {planned}"
        raise OptionError(message, hint=f"partition(…, dtype={wanted!r})")


def _check_statistics(graph: ModelGraph) -> None:
    mixed = mixed_statistics(graph.model, graph.dtype) if graph.casts else []
    if mixed:
        raise OptionError(
            f"batch norm {mixed[0]!r} ({len(mixed)} in all) keeps its running "
            f"statistics in another dtype than {graph.dtype}, which DeepSpeed casts "
            "parameters to: torch has no kernel for the two together",
            hint=f"cast the whole model before partition(): model.to({graph.dtype}), "
            "or train in float32",
        )


def check_autocast(config: Mapping[str, Any]) -> None:
    """Refuse casts inside the stages.

    Raises:
        OptionError: ``amp`` or ``torch_autocast`` is enabled.
    """
    for key in ("amp", "torch_autocast"):
        if section(config, key).get("enabled", False):
            raise OptionError(
                f"{key} is enabled: it would cast inside the stages, and what crosses "
                "their boundaries was recorded without",
                hint="use torch.autocast in the model's own forward, or "
                'partition(…, dtype="bfloat16")',
            )


def zero_stage(config: Mapping[str, Any]) -> Any:
    """Return ZeRO's stage as it is written."""
    return section(config, "zero_optimization").get("stage", 0)


def check_zero_stage(config: Mapping[str, Any]) -> None:
    """Refuse ZeRO stages that no pipeline has.

    Raises:
        OptionError: The stage is 2 or 3, or no stage at all.
    """
    stage = zero_stage(config)
    if type(stage) is not int or not 0 <= stage <= LAST_ZERO_STAGE:
        message = f"zero_optimization.stage is {stage!r}, which is no stage of ZeRO"
        raise OptionError(message, hint="use ZeRO stage 0 or 1, a number")
    if stage > MAX_ZERO_STAGE:
        message = f"ZeRO stage {stage} does not work with DeepSpeed's pipeline engine"
        raise OptionError(message, hint="use ZeRO stage 0 or 1")


def check_offload_param(config: Mapping[str, Any]) -> None:
    """Refuse to offload parameters.

    Raises:
        OptionError: ``offload_param`` has a device.
    """
    zero = section(config, "zero_optimization")
    parameters = section(zero, "offload_param").get("device", "none")
    if parameters not in ("none", None):
        message = f"offload_param to {parameters!r} needs ZeRO stage 3"
        hint = "a pipeline has ZeRO stage 0 or 1: offload the optimizer's states alone"
        raise OptionError(message, hint=hint)


def check_offload_optimizer(config: Mapping[str, Any]) -> None:
    """Refuse what DeepSpeed would ignore or cannot do in a pipeline.

    Raises:
        OptionError: ``offload_optimizer`` without ZeRO-1, or to another place than
            the CPU.
    """
    stage = zero_stage(config)
    target = offloads(config)
    if target and stage != 1:
        message = f"offload_optimizer is set, but ZeRO stage is {stage}: it is ignored"
        raise OptionError(message, hint='zero_optimization={"stage": 1, …}')
    if target and target != "cpu":
        message = f"offload_optimizer to {target!r} needs ZeRO stage 3"
        raise OptionError(message, hint='a pipeline can offload to "cpu"')


def _check_counted(config: Mapping[str, Any], options: Options) -> None:
    """Refuse to hold more than the plan's memory was counted for."""
    stage = zero_stage(config)
    if stage < options.zero_stage:
        message = (
            f"ZeRO stage is {stage}, but the plan's memory was counted for stage 1"
        )
        raise OptionError(message, hint="partition(…, zero_stage=0)")
    if options.offload_optimizer and not offloads(config):
        message = "nothing is offloaded, but the plan's memory was counted so"
        raise OptionError(message, hint="partition(…, offload_optimizer=False)")


def check_accumulation(config: Mapping[str, Any], planned: torch.dtype) -> None:
    """Refuse what DeepSpeed has no optimizer for.

    Raises:
        OptionError: ``grad_accum_dtype`` is of another precision than the engine's,
            without ZeRO.
    """
    dtype = section(config, "data_types").get("grad_accum_dtype")
    zero = section(config, "zero_optimization").get("stage", 0)
    own = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    if dtype is None or zero or dtype == own.get(planned):
        return
    message = (
        f"grad_accum_dtype is {dtype!r} for a plan in {planned}, which DeepSpeed "
        "can do with ZeRO stage 1 only"
    )
    raise OptionError(message, hint='zero_optimization={"stage": 1}')


def check_recomputation(config: Mapping[str, Any]) -> None:
    """Refuse a second recomputation beside the plan's.

    Raises:
        OptionError: ``activation_checkpoint_interval`` is set.
    """
    interval = section(config, "pipeline").get("activation_checkpoint_interval", 0)
    if interval:
        message = (
            f"activation_checkpoint_interval is {interval}, but the plan decides what "
            "is recomputed: it would be recomputed twice"
        )
        raise OptionError(message, hint='partition(…, checkpointing="all")')
