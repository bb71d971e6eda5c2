"""Explains why nothing fits the memory, and what would."""

from __future__ import annotations

import dataclasses
import math
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from partitioner.errors import MemoryLimitError, OptionError
from partitioner.solve.candidates import Laid
from partitioner.solve.contract import contract
from partitioner.solve.feasible import largest_stages
from partitioner.solve.groups import build_groups
from partitioner.solve.order_dp import least_bottleneck
from partitioner.solve.score import score

if TYPE_CHECKING:
    from partitioner.solve.problem import Checkpointing, Problem

__all__ = ["in_flight_for", "memory_error"]

BOUNDS = 240
ORDERS = 3
MORE_STAGES = 16
"""How many larger numbers of stages are tried."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tightest:
    """The slicing whose largest stage is smallest."""

    needed_bytes: int
    stage: int


def memory_error(problem: Problem) -> MemoryLimitError:
    """Return the error for a problem of which no plan fits.

    Args:
        problem: With a memory limit.
    """
    limit = problem.memory_limit_bytes or 0
    tightest = min(
        (t for t in (_tightest(p) for p in _modes(problem)) if t is not None),
        key=lambda t: t.needed_bytes,
    )
    return MemoryLimitError(
        f"stage {tightest.stage} needs {_size(tightest.needed_bytes)} in the plan with"
        f" the smallest stages that was found, {_size(tightest.needed_bytes - limit)}"
        f" more than the limit of {_size(limit)}",
        stage=tightest.stage,
        needed_bytes=tightest.needed_bytes,
        limit_bytes=limit,
        hint=_hint(problem, tightest.needed_bytes),
    )


def _modes(problem: Problem) -> list[Problem]:
    """Return the problem without a choice of what to recompute, each way allowed."""
    choices: dict[Checkpointing, tuple[Checkpointing, ...]] = {
        "auto": ("all", "none"),
        "all": ("all",),
        "none": ("none",),
    }
    return [
        dataclasses.replace(problem, checkpointing=way)
        for way in choices[problem.checkpointing]
    ]


def _hint(problem: Problem, needed_bytes: int) -> str:
    advice = [f"{problem.stages} stages would fit a limit of {_size(needed_bytes)}"]
    limit = problem.memory_limit_bytes or 0
    if problem.checkpointing == "none":
        full = _tightest(dataclasses.replace(problem, checkpointing="all"))
        if full is not None and full.needed_bytes < needed_bytes:
            advice.append(
                f'with checkpointing="all", {_size(full.needed_bytes)} would be enough'
            )
    more = _more_stages(problem, limit)
    if more is not None:
        advice.append(f"{more} stages would fit the limit as it is")
    return "; ".join(advice) + "."


def _more_stages(problem: Problem, limit: int) -> int | None:
    """Return the next larger number of stages that would fit, or None."""
    largest = largest_stages(build_groups(problem, range(len(problem.units))))
    stop = min(largest, problem.stages + MORE_STAGES)
    for stages in range(problem.stages + 1, stop + 1):
        larger = dataclasses.replace(
            problem, stages=stages, in_flight=in_flight_for(problem, stages)
        )
        for way in _modes(larger):
            found = _tightest(way)
            if found is not None and found.needed_bytes <= limit:
                return stages
    return None


def in_flight_for(problem: Problem, stages: int) -> tuple[int, ...]:
    """Return the in-flight counts for another number of stages.

    A stage holds as many micro-batches as one equally far from the end; further from
    it, one more for each stage, up to all of them (1F1B).
    """
    from_end = list(reversed(problem.in_flight))
    while len(from_end) < stages:
        from_end.append(min(from_end[-1] + 1, max(problem.micro_batches, from_end[-1])))
    return tuple(reversed(from_end[:stages]))


def _tightest(problem: Problem) -> _Tightest | None:
    try:
        groups = contract(build_groups(problem, range(len(problem.units))))
    except OptionError:  # a pin names a stage that this number of stages lacks
        return None
    laid, best = Laid(groups), None
    for table in islice(laid.tables(max(BOUNDS, 3 * problem.stages)), ORDERS):
        memory = [table.memory_bytes(count) for count in problem.in_flight]
        sliced = least_bottleneck(
            [
                np.where(table.allowed(stage), memory[stage], math.inf)
                for stage in range(problem.stages)
            ]
        )
        if sliced is None:
            continue
        stage_of = groups.stage_of_units(table.stage_of_groups(sliced.cuts))
        again = [
            problem.checkpointing == "all" and unit.block >= 0 for unit in problem.units
        ]
        rows = score(problem, stage_of, again).stages
        needed = [row.memory_bytes for row in rows]
        if best is None or max(needed) < best.needed_bytes:
            best = _Tightest(needed_bytes=max(needed), stage=needed.index(max(needed)))
    return best


def _size(count: int) -> str:
    """Return bytes in the largest binary unit below them, rounded up to be enough."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(count) >= 1 << power:
            return f"{math.ceil(100 * count / (1 << power)) / 100:.2f} {unit}"
    return f"{count} B"
