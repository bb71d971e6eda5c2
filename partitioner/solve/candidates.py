"""Finds good assignments by slicing several orders, under each way to recompute."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from partitioner.solve.feasible import witness
from partitioner.solve.intervals import Intervals, block_reads, choose_bounds
from partitioner.solve.order_dp import least_step
from partitioner.solve.orders import topological_orders
from partitioner.solve.recompute import recompute_costs, recomputed_units, table_size
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.solve.groups import Groups
    from partitioner.solve.intervals import BlockRead
    from partitioner.solve.orders import Order
    from partitioner.solve.problem import Problem

__all__ = ["Candidate", "Laid", "candidate_of", "slice_orders"]

COARSE_BOUNDS = 480
"""Positions of an order where a stage may end, at first."""
FINE_BOUNDS = 1_600
"""Positions if the coarse ones hold no legal slicing."""
BOUNDS_PER_STAGE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A legal assignment and its step time."""

    stage_of: tuple[int, ...]
    recomputed: tuple[bool, ...]
    step_s: float
    source: str
    """What found it: a solver's name or "order-dp"."""


def candidate_of(
    problem: Problem, stage_of: Sequence[int], source: str
) -> Candidate | None:
    """Complete an assignment of stages with the least recomputation that fits.

    Returns:
        The candidate, or None if some stage cannot fit.
    """
    recomputed = recomputed_units(problem, stage_of)
    if recomputed is None:
        return None
    return Candidate(
        stage_of=tuple(stage_of),
        recomputed=recomputed,
        step_s=score(problem, stage_of, recomputed).step_s,
        source=source,
    )


class Laid:
    """The groups of a problem with the orders they are laid out in."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        windows = groups.earliest.tolist(), groups.latest.tolist()
        found = witness(groups, windows, groups.problem.stages)
        self.witness = found or list(windows[0])

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """Topological orders, the most promising first."""
        return tuple(topological_orders(self.groups, self.witness))

    @cached_property
    def reads(self) -> list[BlockRead]:
        """What activation-checkpoint blocks read."""
        return block_reads(self.groups)

    def tables(self, most: int) -> Iterator[Intervals]:
        """Yield the interval table of each order."""
        for order in self.orders:
            bounds = choose_bounds(self.groups, order, most)
            yield Intervals(self.groups, order, bounds, self.reads)


def slice_orders(laid: Laid, *, choose: bool, deadline: float) -> Candidate | None:
    """Slice every order and keep the best.

    Args:
        laid: The groups and their orders.
        choose: Choose what to recompute; otherwise ``checkpointing="all"`` recomputes
            every block and anything else none.
        deadline: Value of ``time.monotonic()`` after which no further order is begun
            once there is a candidate.

    Returns:
        The best legal assignment found, or None.
    """
    problem = laid.groups.problem
    coarse = max(COARSE_BOUNDS, BOUNDS_PER_STAGE * problem.stages)
    if choose:
        most = max(table_size(problem), 3 * problem.stages)
        return _best(laid, laid.tables(most), choose=True, deadline=deadline)
    found = _best(laid, laid.tables(coarse), choose=False, deadline=deadline)
    if found is None and len(laid.groups) > coarse:
        fine = islice(laid.tables(FINE_BOUNDS), 2)
        found = _best(laid, fine, choose=False, deadline=deadline)
    return found


def _best(
    laid: Laid, tables: Iterator[Intervals], *, choose: bool, deadline: float
) -> Candidate | None:
    problem = laid.groups.problem
    best: Candidate | None = None
    for table in tables:
        costs = recompute_costs(table) if choose else table.stage_costs()
        cutoff_s = math.inf if best is None else best.step_s
        sliced = least_step(costs, problem.micro_batches, cutoff_s=cutoff_s)
        if sliced is not None:
            stage_of = laid.groups.stage_of_units(table.stage_of_groups(sliced.cuts))
            found = candidate_of(problem, stage_of, "order-dp")
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
        if best is not None and time.monotonic() > deadline:
            break
    return best
