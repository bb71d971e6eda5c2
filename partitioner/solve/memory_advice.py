"""Explains why nothing fits the memory, and what would."""

from __future__ import annotations

import dataclasses
import math
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from partitioner.errors import InfeasibleError, MemoryLimitError, OptionError
from partitioner.solve.candidates import Laid
from partitioner.solve.contract import contract
from partitioner.solve.feasible import largest_stages
from partitioner.solve.groups import condensed
from partitioner.solve.order_dp import least_bottleneck
from partitioner.solve.pair_dp import PairCosts, least_weighted_pairs
from partitioner.solve.recompute import forced
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partitioner.solve.intervals import Intervals
    from partitioner.solve.order_dp import Slicing
    from partitioner.solve.problem import Checkpointing, Problem

__all__ = ["in_flight_for", "memory_error", "sized"]

BOUNDS = 240
PAIR_BOUNDS = 48
ORDERS = 3
MORE_STAGES = 16
"""How many larger numbers of stages are tried."""


NO_LIMIT = 1 << 62
"""Bytes that no rank needs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tightest:
    """The slicing whose largest excess over the memory limits is smallest."""

    needed_bytes: int
    """By the rank with that excess."""
    rank: int
    limit_bytes: int

    @property
    def excess_bytes(self) -> int:
        """Missing bytes; not above 0 if it fits."""
        return self.needed_bytes - self.limit_bytes


def memory_error(problem: Problem) -> InfeasibleError:
    """Return the error for a problem of which no plan was found.

    Args:
        problem: With a memory limit, or with constraints that rule all plans out.
    """
    ways = (t for t in (_tightest(p) for p in _modes(problem)) if t is not None)
    tightest = min(ways, key=lambda t: t.excess_bytes, default=None)
    if tightest is None or tightest.excess_bytes <= 0:
        return InfeasibleError(
            "no plan was found that obeys the constraints",
            hint="Remove a constraint, raise the time limit, or use fewer stages.",
        )
    return MemoryLimitError(
        f"stage {tightest.rank} needs {sized(tightest.needed_bytes)} in the plan with"
        f" the smallest stages that was found, {sized(tightest.excess_bytes)}"
        f" more than the limit of {sized(tightest.limit_bytes)}",
        stage=tightest.rank,
        needed_bytes=tightest.needed_bytes,
        limit_bytes=tightest.limit_bytes,
        hint=_hint(problem, tightest),
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


def _hint(problem: Problem, tightest: _Tightest) -> str:
    needed = sized(tightest.needed_bytes)
    stages = "1 stage" if problem.ranks == 1 else f"{problem.ranks} stages"
    advice = [f"{stages} would fit a limit of {needed}"]
    if problem.devices:
        advice = [f"rank {tightest.rank} would need {needed}"]
    if problem.checkpointing == "none":
        full = _tightest(dataclasses.replace(problem, checkpointing="all"))
        if full is not None and full.needed_bytes < tightest.needed_bytes:
            advice.append(
                f'with checkpointing="all", {sized(full.needed_bytes)} would be enough'
            )
    more = _more_stages(problem)
    if more is not None:
        advice.append(f"{more} stages would fit the limit as it is")
    return "; ".join(advice) + "."


def _more_stages(problem: Problem) -> int | None:
    """Return the next larger number of stages that would fit, or None.

    Only where stages are alike: of other devices there are no more.
    """
    if problem.devices or problem.ranks < problem.stages:
        return None
    largest = largest_stages(condensed(problem))
    stop = min(largest, problem.stages + MORE_STAGES)
    for stages in range(problem.stages + 1, stop + 1):
        larger = dataclasses.replace(
            problem, stages=stages, in_flight=in_flight_for(problem, stages), far=()
        )
        for way in _modes(larger):
            found = _tightest(way)
            if found is not None and found.excess_bytes <= 0:
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
        groups = contract(condensed(problem))
    except OptionError:  # a pin names a stage that this number of stages lacks
        return None
    laid, best = Laid(groups), None
    paired = problem.ranks < problem.stages
    most = PAIR_BOUNDS if paired else BOUNDS
    for table in islice(laid.tables(max(most, 3 * problem.stages)), ORDERS):
        sliced = _least_excess(table, paired=paired)
        if sliced is None:
            continue
        stage_of = groups.stage_of_units(table.stage_of_groups(sliced.cuts))
        found = _worst(problem, stage_of)
        if best is None or found.excess_bytes < best.excess_bytes:
            best = found
    return best


def _limits(problem: Problem) -> list[int]:
    return [NO_LIMIT if limit is None else limit for limit in problem.limits]


def _least_excess(table: Intervals, *, paired: bool) -> Slicing | None:
    """Minimise the largest excess over the memory limit of a rank."""
    problem, limits = table.groups.problem, _limits(table.groups.problem)
    excess = []
    for stage in range(problem.stages):
        rank = problem.rank_of(stage)
        first = stage == problem.stages_of(rank)[0]
        room = limits[rank] if first else problem.engine_bytes  # which both count
        over = table.memory_bytes(problem.in_flight[stage]) - room
        excess.append(np.where(table.allowed(stage), over, math.inf))
    if not paired:
        return least_bottleneck(excess)
    nothing = [np.zeros_like(over) for over in excess]
    costs = PairCosts(
        time_s=excess, memory_bytes=nothing, limits=[math.inf] * problem.ranks
    )
    return least_weighted_pairs(costs, (1.0, 0.0))


def _worst(problem: Problem, stage_of: Sequence[int]) -> _Tightest:
    rows = score(problem, stage_of, forced(problem)).ranks
    return max(
        (
            _Tightest(needed_bytes=row.memory_bytes, rank=rank, limit_bytes=limit)
            for rank, (row, limit) in enumerate(
                zip(rows, _limits(problem), strict=True)
            )
        ),
        key=lambda found: found.excess_bytes,
    )


def sized(count: int) -> str:
    """Return bytes in the largest binary unit below them, rounded up to be enough."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(count) >= 1 << power:
            return f"{math.ceil(100 * count / (1 << power)) / 100:.2f} {unit}"
    return f"{count} B"
