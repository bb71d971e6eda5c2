"""Options that commands share; ``cli`` holds the commands."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from partitioner.cli.values import groups, pins, usable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "EXISTING_FILE",
    "JSON",
    "POSITIVE",
    "file_option",
    "options_of",
    "planning",
    "refuse_planning",
]


POSITIVE = click.IntRange(min=1)

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file to read."""
JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout instead of a table."
)
_PLANNING = {
    "micro_batches": click.option(
        "--micro-batches",
        type=POSITIVE,
        show_default="four times the stages",
        metavar="M",
        help="Micro-batches per step.",
    ),
    "device": click.option(
        "--device",
        show_default="the accelerator present, else cpu",
        metavar="NAME",
        help="Profile to price for: cpu, a100-80g, h100, ..., or a .toml or .json "
        "file; measure: time the model's parts here.",
    ),
    "measurements": click.option(
        "--measurements",
        type=EXISTING_FILE,
        metavar="FILE",
        help="Price by what `partitioner measure` wrote.",
    ),
    "memory_limit": click.option(
        "--memory-limit",
        metavar="SIZE",
        show_default="the device's",
        help="Memory of one stage, like 24GiB.",
    ),
    "dtype": click.option(
        "--dtype",
        metavar="DTYPE",
        show_default="the model's",
        help="Dtype to record and price in, like bfloat16.",
    ),
    "optimizer": click.option(
        "--optimizer",
        default="adamw",
        show_default=True,
        metavar="NAME",
        help="Optimizer whose states take memory.",
    ),
    "checkpointing": click.option(
        "--checkpointing",
        type=click.Choice(["none", "auto", "all"]),
        default="auto",
        show_default=True,
        help="Where to recompute activations in backward.",
    ),
    "schedule": click.option(
        "--schedule",
        type=click.Choice(["1f1b", "eager-1f1b", "dualpipev", "auto"]),
        default="1f1b",
        show_default=True,
        help="Schedule to plan for; auto: 1f1b, or eager-1f1b where it pays.",
    ),
    "objective": click.option(
        "--objective",
        type=click.Choice(["step", "bottleneck"]),
        default="step",
        show_default=True,
        help="Shortest step, or fastest slowest stage.",
    ),
    "devices_per_node": click.option(
        "--devices-per-node",
        type=POSITIVE,
        metavar="N",
        help="Stages stand on nodes of so many devices; needs --between-nodes.",
    ),
    "between_nodes": click.option(
        "--between-nodes",
        metavar="LINK",
        help="What a device has between nodes: ib-400, ethernet-100, ..., or Gbit/s.",
    ),
    "within_node": click.option(
        "--within-node",
        metavar="LINK",
        show_default="the device's",
        help="What it has inside its node: nvlink4, pcie4, ...",
    ),
    "replicas": click.option(
        "--replicas",
        type=POSITIVE,
        metavar="R",
        show_default="1",
        help="Pipelines side by side: under ZeRO they share the optimizer's states, "
        "in a cluster they spread the stages over more nodes.",
    ),
    "zero_stage": click.option(
        "--zero-stage",
        type=click.IntRange(0, 1),
        default=0,
        show_default=True,
        metavar="0|1",
        help="DeepSpeed's ZeRO; a pipeline has 0 or 1.",
    ),
    "offload_optimizer": click.option(
        "--offload-optimizer",
        is_flag=True,
        help="Keep the optimizer's states in the host's memory; needs --zero-stage 1.",
    ),
    "cuda_graphs": click.option(
        "--cuda-graphs",
        is_flag=True,
        help="Stages are replayed as CUDA graphs: the host's time does not count.",
    ),
    "leaf": click.option(
        "--leaf",
        multiple=True,
        metavar="PATTERN",
        help="Modules that run whole and are not recorded through; repeatable.",
    ),
    "no_cut_inside": click.option(
        "--no-cut-inside",
        multiple=True,
        metavar="PATTERN",
        help="Modules that no cut may go through; repeatable.",
    ),
    "keep_together": click.option(
        "--keep-together",
        multiple=True,
        callback=groups,
        metavar="PATTERN,PATTERN",
        help="Modules that share a stage; repeatable.",
    ),
    "pin": click.option(
        "--pin",
        multiple=True,
        callback=pins,
        metavar="PATTERN=STAGE",
        help="Stage that modules run on, negative from the last; repeatable.",
    ),
    "equal_stages": click.option(
        "--equal-stages",
        multiple=True,
        metavar="PATTERN",
        help="Modules of which every stage runs equally many; repeatable.",
    ),
    "solver": click.option(
        "--solver",
        type=click.Choice(["cbc", "highs"]),
        default="cbc",
        show_default=True,
        help="Program that looks for the best plan.",
    ),
    "gap": click.option(
        "--gap",
        type=click.FloatRange(min=0, max=1),
        default=0.01,
        show_default=True,
        metavar="FRACTION",
        help="Distance from the best step time at which to stop.",
    ),
    "time_limit_s": click.option(
        "--time-limit",
        "time_limit_s",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="Time for the solver; the best plan so far is used after it.",
    ),
}


def planning(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``partition()``."""

    @wraps(command)
    def gathered(*arguments: Any, **options: Any) -> None:
        cluster = _cluster({name: options.pop(name) for name in _CLUSTER})
        command(*arguments, cluster=cluster, **options)

    return options_of(*_PLANNING)(gathered)


def refuse_planning(*more: str, instead: str) -> None:
    """Refuse the options of planning where a stored plan has its own.

    Args:
        *more: Names of further parameters that a stored plan decides.
        instead: The option that names the stored plan.

    Raises:
        UsageError: One was given; all of them are named.
    """
    context = click.get_current_context()
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name in {*_PLANNING, *more}
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        message = f"{instead} has its own {', '.join(given)}: leave them out"
        raise click.UsageError(message)


def options_of(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command some of the options of planning.

    Args:
        *names: Keys of ``_PLANNING``, in the order of the help.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for name in reversed(names):
            command = _PLANNING[name](command)
        return command

    return decorated


_CLUSTER = ("devices_per_node", "between_nodes", "within_node")


def _cluster(options: dict[str, Any]) -> dict[str, Any] | None:
    """Return ``cluster=`` of ``partition()`` from the options that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    if given and not given.keys() >= {"devices_per_node", "between_nodes"}:
        message = "a cluster needs --devices-per-node and --between-nodes"
        raise click.UsageError(message)
    return given or None


def file_option(*names: str, text: str, required: bool = False) -> Callable[..., Any]:
    """Return an option that names a file to write."""
    return click.option(
        *names,
        type=click.Path(writable=True, path_type=Path),
        callback=usable,
        metavar="FILE",
        help=text,
        required=required,
    )
