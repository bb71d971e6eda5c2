"""The commands that turn checkpoints into weights, and weights into checkpoints."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from partitioner.cli.encoding import say
from partitioner.cli.output import opened
from partitioner.cli.target import Typed, target_argument

__all__ = ["export", "import_"]


@click.command()
@click.argument(
    "checkpoint",
    metavar="CKPT_DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Where to write: a folder that is new or empty.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    show_default="as the model ran",
    help="Dtype of the weights; made from the optimizer's fp32 copies if it had some.",
)
@click.option(
    "--max-shard-size",
    default="5GB",
    show_default=True,
    metavar="SIZE",
    help="Largest weight file.",
)
def export(
    checkpoint: Path, *, output: Path, dtype: str | None, max_shard_size: str
) -> None:
    """Write a training checkpoint as the original model's weights.

    CKPT_DIR is what engine.save_checkpoint() was given (the latest is taken), or one
    tag's folder in it. The weights are safetensors under the model's own names; of a
    Hugging Face model, with config.json, so that from_pretrained(FOLDER) loads them.
    """
    with redirect_stdout(sys.stderr):
        from partitioner.runtime.checkpoint.export import export as run
        from partitioner.runtime.checkpoint.export import find_checkpoint

        found = run(
            find_checkpoint(checkpoint),
            output,
            dtype=dtype,
            max_shard_size=max_shard_size,
        )
    say(
        f"{found.tensors} tensors ({found.bytes / 1e9:.3g} GB) of step {found.step} "
        f"written to {output} ({', '.join(found.files)})"
    )
    for name in found.left_out:
        say(f"left out, no tensor: {name}")


@click.command("import")
@click.argument(
    "weights", metavar="WEIGHTS", type=click.Path(exists=True, path_type=Path)
)
@target_argument()
@click.option(
    "--plan",
    "plan_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The plan, as plan.save() or inspect -o wrote it.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="CKPT_DIR",
    help="The folder of all checkpoints, for engine.load_checkpoint().",
)
@click.option(
    "--tag",
    default="global_step0",
    show_default=True,
    help="The checkpoint's name.",
)
def import_(
    *, weights: Path, target: Typed, plan_file: Path, output: Path, tag: str
) -> None:
    """Write weights as a checkpoint of step 0 for TARGET's plan.

    WEIGHTS is a safetensors file or the folder of a Hugging Face model. Any plan of the
    same model loads the checkpoint; so does DeepSpeed's own engine under this plan.
    """
    with redirect_stdout(sys.stderr):
        from partitioner.emit.identity import plan_record, stored_tensors
        from partitioner.plan import Plan
        from partitioner.runtime.checkpoint.folders import CheckpointFolder
        from partitioner.runtime.checkpoint.from_weights import import_weights

        with opened(target) as found:
            plan = Plan.load(plan_file, found.model)
            unknown = import_weights(
                weights,
                CheckpointFolder(output, tag),
                plan_record(plan.graph, plan.layers),
                stored_tensors(plan.graph, plan.layers),
            )
    say(f"checkpoint {tag} written to {output}")
    for name in unknown:
        say(f"not in the model: {name}")
