"""What a recorded run tells: ``partitioner trace`` and ``partitioner replan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from partitioner.cli.encoding import say
from partitioner.cli.options import EXISTING_FILE, JSON, file_option
from partitioner.cli.output import opened, progress, show, status
from partitioner.cli.target import Typed, target_argument

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["replan", "trace"]


@click.command()
@click.argument("file", metavar="FILE", type=EXISTING_FILE)
@JSON
def trace(file: Path, *, as_json: bool) -> None:
    """Say where the time of the steps in FILE went, and who waited for whom.

    FILE was written by plan.trace(engine, FILE); https://ui.perfetto.dev shows it.
    """
    from partitioner.report.usage import usage_report
    from partitioner.timeline import Trace, usage

    show(usage(Trace.load(file)).to_dict(), usage_report, as_json=as_json)


@click.command()
@target_argument()
@click.option(
    "--plan",
    type=EXISTING_FILE,
    metavar="FILE",
    required=True,
    help="The plan that ran.",
)
@click.option(
    "--from",
    "trace_file",
    type=EXISTING_FILE,
    metavar="FILE",
    required=True,
    help="What it took: a trace of plan.trace().",
)
@file_option("-o", "--output", text="Write the new plan to FILE.", required=True)
@file_option("--html", text="Also write a page with pictures of it to FILE.")
@JSON
def replan(
    *,
    target: Typed,
    plan: Path,
    trace_file: Path,
    output: Path,
    html: Path | None,
    as_json: bool,
) -> None:
    """Plan TARGET's pipeline again, by the times that a run of a plan took."""
    from partitioner.report.html import require_libraries
    from partitioner.report.replan import replan_report

    if html:
        require_libraries()
    with opened(target) as found:
        from partitioner.plan import Plan

        with status("planning by measured times"):
            before = Plan.load(plan, found.model)
            after = before.replan(trace_file)
        after.save(output)
        say(f"plan written to {output}")
        if html:
            with progress("looking for limits") as tell:
                after.save_html(html, progress=tell)
            say(f"page written to {html}")
        stayed = after.reassigned(before)
        document = {**after.to_dict(), "before": stayed.simulation.to_dict()}
    show(document, replan_report, as_json=as_json)
