"""The command that looks a DeepSpeed configuration over."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from partitioner.cli.encoding import say
from partitioner.cli.options import JSON, POSITIVE, file_option
from partitioner.cli.output import show

__all__ = ["doctor"]


@click.command()
@click.argument(
    "config_file",
    metavar="CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The plan that it is for, as plan.save() or inspect -o wrote it.",
)
@click.option(
    "--env",
    "with_machine",
    is_flag=True,
    help="Also look at this machine: variables, network, NUMA, PCIe, memory.",
)
@click.option(
    "--stages",
    type=POSITIVE,
    metavar="N",
    show_default="the plan's, or what CONFIG means",
    help="Pipeline ranks.",
)
@click.option(
    "--processes",
    type=POSITIVE,
    metavar="N",
    help="Processes of the run: stages times replicas.",
)
@click.option(
    "--total-steps",
    type=POSITIVE,
    metavar="N",
    help="Optimizer steps of the run, for schedules that need them.",
)
@click.option(
    "--fix", is_flag=True, help="Also write a corrected copy, without comments."
)
@file_option(
    "-o", "--output", text="Where --fix writes; by default beside CONFIG, as .fixed."
)
@JSON
def doctor(
    config_file: Path,
    *,
    plan_file: Path | None,
    with_machine: bool,
    stages: int | None,
    processes: int | None,
    total_steps: int | None,
    fix: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Look a DeepSpeed configuration over: what is wrong, why, what to change.

    CONFIG is JSON, with comments or without. Exits with 1 if there is an error.
    """
    if output and not fix:
        message = "-o is where --fix writes: give both"
        raise click.UsageError(message)
    with redirect_stdout(sys.stderr):
        from partitioner.doctor import config_text, examine, read_config, read_machine
        from partitioner.files import write_whole
        from partitioner.plan.file import read_document
        from partitioner.report.diagnosis import diagnosis_report

        found = read_config(config_file)
        examination = examine(
            found.config,
            duplicates=found.duplicates,
            plan=read_document(plan_file) if plan_file else None,
            stages=stages,
            processes=processes,
            total_steps=total_steps,
            machine=read_machine() if with_machine else None,
        )
    if fix:
        suffix = config_file.suffix or ".json"
        copy = output or config_file.with_suffix(f".fixed{suffix}")
        write_whole(copy, config_text(examination.fixed), "the configuration")
        count = len(examination.edits)
        say(f"corrected copy written to {copy} ({count} changes)")
    show(examination.to_dict(), diagnosis_report, as_json=as_json)
    if not examination.ok:
        sys.exit(1)
