"""A plan's dictionary → what a reader must know beside the table of stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from partitioner.report.memory import memory_parts
from partitioner.report.names import compress_names
from partitioner.report.units import (
    format_bytes,
    format_flops,
    format_seconds,
    format_share,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["facts", "facts_grid"]

_ROWS_SHOWN = 10
"""Entries per fact; the plan file has all of them."""

_GUARDS_SHOWN = 3
"""Guards that are named: they matter when one fails, and then an error names it."""

_LABEL_WIDTH = len("checkpointed")
"""Columns of the longest label, so that two reports line up."""

_PROVEN_GAP = 1e-9
"""Largest gap that is rounding alone, and so still a proof of optimality."""


def facts_grid(plan: Mapping[str, Any]) -> Table:
    """Build the lines under the table, one label with its values per row.

    Args:
        plan: The plan as ``Plan.to_dict()`` returns it (schema version 1).

    Returns:
        A grid of two columns: the label, and its values, one per line.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=_LABEL_WIDTH)
    grid.add_column(overflow="fold")
    for label, values in facts(plan):
        style = "yellow" if label in {"warnings", "not priced"} else ""
        shown = _capped(values)
        grid.add_row(Text(label, style="bold"), Text("\n".join(shown), style=style))
    return grid


def facts(plan: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield labels and their values, in words; of guards the first.

    Args:
        plan: The plan as ``Plan.to_dict()`` returns it (schema version 1).
    """
    stages = plan["stages"]
    simulated = plan["simulation"]
    step = format_seconds(plan["objective_s"])
    yield "step time", [f"{step}; {format_seconds(simulated['step_s'])} simulated"]
    yield "bottleneck", [_bottleneck(stages[plan["bottleneck_stage"]])]
    yield "bubble", [_bubble(plan)]
    yield "memory", [_memory(max(stages, key=_fullness))]
    if plan["cluster"]:
        yield "cluster", [_cluster(plan["cluster"], plan["options"]["cluster"])]
    yield "gap", [_gap(plan)]
    yield "prices", [str(plan["provenance"]["prices"])]
    yield "solver", [_solver(plan["provenance"])]
    if plan["loss"]:
        yield "loss", [_loss(plan["loss"])]
    many = [
        ("checkpointed", [_checkpointed(s) for s in stages if s["checkpointed"]]),
        ("ties", [_tie(tie) for tie in plan["ties"]]),
        ("given costs", _given_costs(plan["costs"])),
        ("not priced", [_unpriced(entry) for entry in plan["unpriced"]]),
        ("guards", _guards(plan["guards"])),
        ("assumptions", plan["assumptions"]),
        ("warnings", plan["warnings"]),
    ]
    for label, values in many:
        if values or label == "not priced":
            yield label, values or ["nothing: every operator has a price"]


def _bottleneck(stage: Mapping[str, Any]) -> str:
    parts = {
        "communication": stage["communication_s"],
        "recomputation": stage["recompute_s"],
    }
    extra = [f"{name} {format_seconds(t)}" for name, t in parts.items() if t > 0]
    total = f"stage {stage['index']}, {format_seconds(stage['time_s'])} per micro-batch"
    return f"{total} (with {', '.join(extra)})" if extra else total


def _bubble(plan: Mapping[str, Any]) -> str:
    simulated = format_share(plan["simulation"]["bubble_share"])
    share = format_share(plan["bubble_share"])
    return f"{share} of stage time is idle; {simulated} simulated"


def _fullness(stage: Mapping[str, Any]) -> float:
    limit = stage["memory_limit_bytes"]
    return float(stage["memory_bytes"]) / (limit or 1)


def _memory(stage: Mapping[str, Any]) -> str:
    """Say what fills the fullest stage, so that a user sees what to change."""
    shown = [
        f"{format_bytes(nbytes)} {words}"
        for words, nbytes in memory_parts(stage)
        if nbytes > 0
    ]
    total = format_bytes(stage["memory_bytes"])
    return f"stage {stage['index']}, the fullest: {total} = {' + '.join(shown)}"


def _cluster(found: Mapping[str, Any], cluster: Mapping[str, Any]) -> str:
    """Say which boundaries lie between nodes, and what crosses there."""
    count = f"{cluster['devices_per_node']} devices each"
    if cluster["replicas"] > 1:
        count += f", {cluster['replicas']} replicas"
    if not found["far_boundaries"]:
        return f"no boundary lies between nodes ({count})"
    after = ", ".join(str(stage) for stage in found["far_boundaries"])
    plural = "s" if len(found["far_boundaries"]) > 1 else ""
    link = cluster["between_nodes"]
    speed = f"{format_bytes(link['bytes_per_s'])}/s"
    delay = format_seconds(link["latency_s"])
    return (
        f"{found['nodes']} nodes ({count}), {speed} and {delay} between them, "
        f"crossed after stage{plural} {after}"
    )


def _gap(plan: Mapping[str, Any]) -> str:
    if plan["gap"] <= _PROVEN_GAP:
        return "optimal (proven for the prices used)"
    return f"within {format_share(plan['gap'])} of the best step time possible"


def _solver(provenance: Mapping[str, Any]) -> str:
    taken = format_seconds(provenance["solve_s"])
    proof = f"; {provenance['proof']}" if provenance["proof"] else ""
    return f"{provenance['solver']} in {taken}{proof}"


def _checkpointed(stage: Mapping[str, Any]) -> str:
    blocks = ", ".join(compress_names(stage["checkpointed"]))
    again = format_seconds(stage["recompute_s"])
    return f"stage {stage['index']}: {blocks} ({again} of recomputation)"


def _tie(tie: Mapping[str, Any]) -> str:
    stages = ", ".join(str(stage) for stage in tie["stages"])
    plural = "s" if len(tie["stages"]) > 1 else ""
    return f"{tie['parameter']} on stage{plural} {stages}"


def _loss(loss: Mapping[str, Any]) -> str:
    forward, backward = (
        format_seconds(loss[f"{w}_s"]) for w in ("forward", "backward")
    )
    return f"{forward} forward, {backward} backward, on the last stage"


def _given_costs(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name what the user gave; what a run has told is one line."""
    measured = sum("nodes" in entry for entry in entries)
    found = [_given(entry) for entry in entries if "nodes" not in entry]
    return [*found, *([f"{measured} parts as a run took"] if measured else [])]


def _given(entry: Mapping[str, Any]) -> str:
    formats = {"flops": format_flops, "s": format_seconds, "bytes": format_bytes}
    figures = [
        f"{name.rpartition('_')[0]} {formats[name.rpartition('_')[2]](value)}"
        for name, value in entry["cost"].items()
    ]
    count = len(entry["modules"])
    modules = f" ({count} modules)" if count > 1 else ""
    return f"{entry['pattern']}{modules}: {', '.join(figures)}"


def _unpriced(entry: Mapping[str, Any]) -> str:
    times = f" ({entry['count']} times)" if entry["count"] > 1 else ""
    where = f" in {entry['where']}" if entry["where"] else ""
    return f"{entry['operator']}{times}{where}"


def _guards(guards: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the first conditions that every batch must meet."""
    texts = [
        f"{guard['text']} ({guard['source']}, in {guard['module'] or 'the root'})"
        for guard in guards
    ]
    hidden = len(texts) - _GUARDS_SHOWN
    if hidden <= 1:
        return texts
    return [*texts[:_GUARDS_SHOWN], f"… {hidden} more in the plan file"]


def _capped(values: Sequence[str]) -> list[str]:
    hidden = len(values) - _ROWS_SHOWN
    if hidden <= 1:
        return list(values)
    return [*values[:_ROWS_SHOWN], f"… {hidden} more in the plan file"]
