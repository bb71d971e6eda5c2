"""``partitioner inspect``: a plan, new or stored, as text, data or a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from partitioner.cli.encoding import say
from partitioner.cli.options import (
    EXISTING_FILE,
    JSON,
    POSITIVE,
    file_option,
    planning,
    refuse_planning,
)
from partitioner.cli.output import bound, planned, progress, show
from partitioner.cli.target import Typed, target_argument

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from partitioner.plan import Plan
    from partitioner.plan.costs import By, Sort

__all__ = ["inspect"]


@click.command()
@target_argument()
@click.option(
    "--stages",
    type=POSITIVE,
    default=2,
    show_default=True,
    metavar="N",
    help="Pipeline stages.",
)
@planning
@click.option(
    "--by",
    type=click.Choice(["module", "operator", "node"]),
    help="Report by these instead of by stage.",
)
@click.option(
    "--depth",
    type=POSITIVE,
    metavar="N",
    show_default="2",
    help="Levels of modules, with --by module.",
)
@click.option(
    "--sort",
    type=click.Choice(["forward", "backward", "memory", "flops", "params"]),
    show_default="the order of the program",
    help="What to sort by, with --by.",
)
@click.option("--timeline", is_flag=True, help="Also draw one simulated step.")
@click.option(
    "--compare", is_flag=True, help="Also score the splits of DeepSpeed's own methods."
)
@click.option(
    "--explain",
    is_flag=True,
    help="Also say what limits the plan, and what a stage less or more would give.",
)
@JSON
@click.option(
    "--plan",
    "stored",
    type=EXISTING_FILE,
    metavar="FILE",
    help="Report TARGET's stored plan instead of planning.",
)
@file_option("-o", "--output", text="Also write the plan to FILE, for Plan.load.")
@file_option("--trace", text="Also write the simulated step to FILE, for Perfetto.")
@file_option("--html", text="Also write a page with pictures of all that to FILE.")
def inspect(
    *,
    target: Typed,
    stored: Path | None,
    by: By | None,
    depth: int | None,
    sort: Sort | None,
    timeline: bool,
    compare: bool,
    explain: bool,
    as_json: bool,
    output: Path | None,
    trace: Path | None,
    html: Path | None,
    **options: Any,
) -> None:
    """Plan TARGET's pipeline and report it by stage, by module or by operator."""
    from partitioner.report.html import require_libraries
    from partitioner.report.inspection import inspection_report

    if (sort and not by) or (depth and by != "module"):
        message = "--sort needs --by, and --depth needs --by module"
        raise click.UsageError(message)
    if html:
        require_libraries()
    with _plan(target, stored, options) as plan:
        document = plan.to_dict()
        if by:
            levels = {"depth": depth} if depth else {}
            document["breakdown"] = plan.breakdown(by, sort=sort, **levels)
        _write(plan, output, trace)
        if timeline:
            document["timeline"] = plan.timeline()
        document |= _judged(plan, html, compare=compare, explain=explain)
    show(document, inspection_report, as_json=as_json)


def _plan(
    target: Typed, stored: Path | None, options: dict[str, Any]
) -> AbstractContextManager[Plan]:
    if stored is None:
        return planned(target, options)
    refuse_planning("stages", instead="--plan")
    return bound(target, stored)


def _write(plan: Plan, output: Path | None, trace: Path | None) -> None:
    if output:
        plan.save(output)
        say(f"plan written to {output}")
    if trace:
        plan.save_trace(trace)
        say(f"trace written to {trace}")


def _judged(
    plan: Plan, html: Path | None, *, compare: bool, explain: bool
) -> dict[str, Any]:
    """Return what was asked for beside the plan; a page has all of it anyway."""
    found: dict[str, Any] = {}
    if html or explain:
        with progress("looking for limits") as tell:
            if html:
                found = plan.save_html(html, progress=tell)
                say(f"page written to {html}")
            else:
                found["explanation"] = plan.explain(tell).to_dict()
    if compare and not html:
        found["comparison"] = plan.compare().to_dict()
    asked = {"comparison": compare, "explanation": explain}
    return {name: found[name] for name, wanted in asked.items() if wanted}
