"""A run's dictionary → where the time of its steps went, and whom ranks waited for."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.report.units import format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["usage_report"]

_LEGEND = (
    "Times of one micro-batch, medians. vs plan: all passes against the plan's. "
    "Bubble: share of the step, from the first pass of any rank to the last, in which "
    "a rank ran no pass. Waits: time in exchanges in a step, by the stage at the other "
    "end."
)


def usage_report(run: Mapping[str, Any]) -> RenderableType:
    """Build the report of a recorded run.

    Args:
        run: What ``RunUse.to_dict()`` returns (schema version 1).

    Returns:
        A rich renderable that fits 80 columns and does not depend on colour.
    """
    title = Text(
        f"{run['steps']} steps of {run['micro_batches']} micro-batches on "
        f"{len(run['ranks'])} ranks",
        style="bold",
    )
    lines = [Text(line) for line in _facts(run)]
    table, legend = _table(run), Text(_LEGEND, style="dim")
    return Group(title, table, legend, Text(), *lines)


def _table(run: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    table.add_column("Stage", justify="right")
    for heading in ("Forward", "Backward", "Recomp.", "vs plan", "Bubble"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Waits")
    ranks = {rank["rank"]: rank for rank in run["ranks"]}
    for stage in run["stages"]:
        rank = ranks[stage["ranks"][0]]
        mark = " *" if stage["stage"] == run["slowest_stage"] else ""
        table.add_row(
            f"{stage['stage']}{mark}",
            format_seconds(stage["forward_s"]),
            format_seconds(stage["backward_s"]),
            format_seconds(stage["recompute_s"]) if stage["recompute_s"] else "–",
            _drift(run, stage),
            format_share(rank["bubble_share"]),
            _waits(rank),
        )
    return table


def _drift(run: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    if not run["forecast"]:
        return "–"
    kinds = ("forward_s", "backward_s", "recompute_s")
    planned_s = sum(run["forecast"]["stages"][stage["stage"]][kind] for kind in kinds)
    took_s = sum(stage[kind] for kind in kinds)
    return f"{100 * (took_s / planned_s - 1):+.0f} %" if planned_s else "–"


def _waits(rank: Mapping[str, Any]) -> str:
    longest = sorted(rank["waits_s"].items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{format_seconds(s)} stage {peer}" for peer, s in longest if s)


def _facts(run: Mapping[str, Any]) -> Iterator[str]:
    forecast = run["forecast"]
    step = f"step      {format_seconds(run['step_s'])}"
    bubble = f"bubble    {format_share(run['bubble_share'])}"
    if forecast:
        drift = 100 * (run["step_s"] / forecast["step_s"] - 1)
        step += f"; planned {format_seconds(forecast['step_s'])} ({drift:+.0f} %)"
        bubble += f"; planned {format_share(forecast['bubble_share'])}"
    yield step
    yield bubble
    yield from _gpu_use(run["gpu_use"])
    if run["optimizer_s"]:
        yield f"optimizer {format_seconds(run['optimizer_s'])} after it"
    yield (
        f"slowest   stage {run['slowest_stage']}: {run['slowest_to_others']:.2f} times "
        "the mean of the others"
    )
    if run["replan_advised"]:
        yield (
            "advice    plan again by these times: partitioner replan TARGET "
            "--plan PLAN --from TRACE -o NEW"
        )


def _gpu_use(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say how busy the GPUs were; of those that were not asked, why."""
    told = {rank: each for rank, each in enumerate(ranks) if "mean" in each}
    if told:
        least = min(told, key=lambda rank: told[rank]["mean"])
        mean = fmean(each["mean"] for each in told.values())
        yield (
            f"GPU use   {format_share(mean)} of the time; least on rank {least}: "
            f"{format_share(told[least]['mean'])}, "
            f"{format_share(told[least]['p10'])} to {format_share(told[least]['p90'])} "
            "(10th to 90th percentile)"
        )
    silent: dict[str, list[int]] = {}
    for rank, each in enumerate(ranks):
        if rank not in told:
            silent.setdefault(each["not_sampled"], []).append(rank)
    for why, numbers in silent.items():
        who = "" if len(numbers) == len(ranks) else f" on ranks {numbers}"
        yield f"GPU use   not sampled{who}: {why}"
