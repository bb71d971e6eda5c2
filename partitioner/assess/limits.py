"""Finds what keeps a step from being shorter, in words with module paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from partitioner.graph import info
from partitioner.report.names import compress_names
from partitioner.report.units import format_bytes, format_seconds, format_share
from partitioner.solve import needed_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import fx

    from partitioner.assess.case import Case
    from partitioner.assess.variants import Solver, Variant

__all__ = ["Limit", "find_limits"]

LEAST_GAIN = 0.005
"""What would shorten the step by a smaller share than this is called no limit."""
FULL = 0.9
"""A stage that uses this share of its memory may be held back by it."""
_NAMES_SHOWN = 4
"""Modules of one constraint that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One thing that keeps the step from being shorter."""

    kind: Literal["unit", "memory", "communication", "constraint"]
    words: str
    step_s: float | None = None
    """Step time without it, where that was solved for."""


def find_limits(case: Case, solver: Solver) -> Iterator[Limit]:
    """Yield the limits of a plan, each checked by solving without it where it can be.

    Args:
        case: The plan.
        solver: Solves variants of it.
    """
    yield from _unit(case)
    yield from _memory(case, solver)
    yield from _communication(case, solver)
    yield from _constraint(case, solver)


def _unit(case: Case) -> Iterator[Limit]:
    """Look for a unit that is more than an equal share of the work."""
    needs = [
        unit.needs_s(again=again)
        for unit, again in zip(
            case.problem.units, case.assignment.recomputed, strict=True
        )
    ]
    times = [max(each) for each in needs]
    speeds = [case.problem.speed(rank) for rank in range(case.problem.ranks)]
    whole_s = max(map(sum, zip(*needs, strict=True)))
    share_s = whole_s / sum(speeds)
    largest = max(range(len(times)), key=times.__getitem__)
    if times[largest] / max(speeds) > share_s:
        longest, total = case.problem.step_weights
        least_s = (longest * times[largest] + total * whole_s) / max(speeds)
        yield Limit(
            kind="unit",
            words=(
                f"one indivisible unit: {_named(case.units.nodes[largest])}, on stage"
                f" {case.assignment.stage_of[largest]}, takes"
                f" {format_seconds(times[largest])} for one micro-batch, more than an"
                f" equal share of the work ({format_seconds(share_s)}): with this"
                f" recomputation no step is shorter than {format_seconds(least_s)}"
            ),
        )


def _memory(case: Case, solver: Solver) -> Iterator[Limit]:
    """Look for stages that had to give way to the memory limit."""
    needed, limits = needed_bytes(case.problem, case.score), case.problem.limits
    filled = [
        mine / limit if limit else 0.0
        for mine, limit in zip(needed, limits, strict=True)
    ]
    again_s = sum(row.recompute_s for row in case.score.stages)
    fullest = max(range(len(needed)), key=filled.__getitem__)
    limit = limits[fullest]
    if limit is None or (filled[fullest] < FULL and not again_s):
        return
    variant = solver.without_memory_limit()
    if saved := _saved(case, variant):
        again = f", and recomputation takes {format_seconds(again_s)} of every"
        yield Limit(
            kind="memory",
            words=(
                f"memory: {case.rank_name} {fullest} uses"
                f" {format_bytes(needed[fullest])} of {format_bytes(limit)}"
                f"{again + ' micro-batch' if again_s else ''}; without a limit the step"
                f" would take {saved}"
            ),
            step_s=variant.step_s,
        )


def _communication(case: Case, solver: Solver) -> Iterator[Limit]:
    """Look for cuts through so much data that sending it takes time."""
    rows = case.score.stages
    sent_s = sum(row.communication_s for row in rows)
    if sent_s < LEAST_GAIN * sum(row.time_s for row in rows):
        return
    variant = solver.with_free_messages()
    if saved := _saved(case, variant):
        boundary = max(range(len(rows)), key=lambda stage: rows[stage].sent_bytes)
        yield Limit(
            kind="communication",
            words=(
                f"communication: {_crossing(case, boundary)}; if messages took no time,"
                f" the step would take {saved}"
            ),
            step_s=variant.step_s,
        )


def _constraint(case: Case, solver: Solver) -> Iterator[Limit]:
    """Look at what the user keeps whole or together."""
    wanted = case.costed.graph.constraints
    together = [f"keep_together ({_shortened(g)})" for g in wanted.keep_together]
    whole = wanted.no_cut_inside
    given = together + ([f"no_cut_inside ({_shortened(whole)})"] if whole else [])
    given += [one.words for one in case.problem.constraints if one.wished]
    if not given:
        return
    variant = solver.without_constraints()
    if saved := _saved(case, variant):
        yield Limit(
            kind="constraint",
            words=(
                f"constraints: without {' and '.join(given)} the step would take"
                f" {saved}"
            ),
            step_s=variant.step_s,
        )


def _shortened(paths: Sequence[str]) -> str:
    """Name the outermost of some modules, runs of numbers as one."""
    outermost = [
        path
        for path in paths
        if not any(path.startswith(f"{other}.") for other in paths)
    ]
    names = compress_names(outermost)
    hidden = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN] + ([f"{hidden} more"] if hidden > 0 else []))


def _saved(case: Case, variant: Variant) -> str:
    """Say what a variant takes, or nothing if it saves next to nothing."""
    step_s = case.assignment.objective_s
    if variant.step_s is None or variant.step_s > step_s * (1 - LEAST_GAIN):
        return ""
    less = format_share(1 - variant.step_s / step_s)
    return f"{format_seconds(variant.step_s)}, {less} less"


def _crossing(case: Case, boundary: int) -> str:
    """Say what crosses a boundary."""
    stage_of = case.assignment.stage_of
    crossing = [
        value
        for value in case.problem.values
        if value.wire_bytes > 0
        and stage_of[value.producer] <= boundary
        and any(stage_of[reader] > boundary for reader in value.consumers)
    ]
    total = sum(value.wire_bytes for value in crossing)
    largest = max(crossing, key=lambda value: value.wire_bytes)
    many = len(crossing) > 1
    tensors = f"{len(crossing)} tensors, the largest" if many else "1 tensor,"
    return (
        f"{format_bytes(total)} cross the boundary after stage {boundary} in {tensors}"
        f" made by {_named(case.units.nodes[largest.producer])}"
    )


def _named(nodes: Sequence[fx.Node]) -> str:
    """Name a unit by its module, with its line where that is not a whole module."""
    placed = [node for node in nodes if info(node).kind in ("compute", "late")]
    first = (placed or list(nodes))[0]
    facts = info(first)
    count = f"{len(placed)} operations that stay together in " if placed[1:] else ""
    if first.op == "call_module" or not facts.source:
        return f"{count}{facts.module or facts.id}"
    return f"{count}{facts.module or 'the root'} ({facts.source})"
