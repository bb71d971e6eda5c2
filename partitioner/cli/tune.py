"""From one GPU to many: ``partitioner tune``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from partitioner.cli.encoding import say
from partitioner.cli.options import JSON, POSITIVE, options_of
from partitioner.cli.output import opened, progress, show
from partitioner.cli.target import Typed, target_argument

__all__ = ["tune"]


@click.command()
@target_argument("--micro-batch")
@click.option(
    "--gpus",
    type=POSITIVE,
    required=True,
    metavar="N",
    help="GPUs, on all nodes together.",
)
@click.option(
    "--nodes",
    type=POSITIVE,
    default=1,
    show_default=True,
    metavar="N",
    help="Nodes they stand on; more than one need --between-nodes.",
)
@click.option(
    "--batch",
    type=POSITIVE,
    required=True,
    metavar="SAMPLES",
    help="Samples of one step; a micro-batch has those of example_inputs, or "
    "--micro-batch.",
)
@click.option(
    "--memory",
    "memory_limit",
    metavar="SIZE",
    show_default="the device's",
    help="Memory of one GPU, like 80GiB.",
)
@options_of(
    "device",
    "measurements",
    "dtype",
    "optimizer",
    "checkpointing",
    "between_nodes",
    "within_node",
    "leaf",
    "no_cut_inside",
    "keep_together",
    "equal_stages",
    "solver",
    "gap",
    "time_limit_s",
)
@click.option(
    "--measure",
    "top",
    type=POSITIVE,
    metavar="K",
    help="Run the K fastest here for some steps; the clock decides among them.",
)
@JSON
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write plan.json and ds_config.json of the best into FOLDER.",
)
def tune(
    *,
    target: Typed,
    top: int | None,
    as_json: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Find the fastest way to train TARGET on some GPUs.

    Plans one GPU, data parallelism with ZeRO-1, pipelines, and replicas of pipelines.
    Exits with 1 if none of them fits.
    """
    from partitioner.report.tuning import tuning_report

    with opened(target) as found:
        from partitioner.tuning import measure
        from partitioner.tuning import tune as tuned

        with progress(f"tuning {found.name}") as tell:
            tuning = tuned(found.model, **found.arguments(), **options, progress=tell)
            if top:
                typed = {"text": target.text, "options": dict(target.options)}
                tuning = measure(tuning, typed, top=top, progress=tell)
        if output and tuning.best:
            tuning.save(output)
            names = f"{output / 'plan.json'} and {output / 'ds_config.json'}"
            say(f"{tuning.best.layout.name} written to {names}")
    show(tuning.to_dict(), tuning_report, as_json=as_json)
    if tuning.best is None:
        sys.exit(1)
