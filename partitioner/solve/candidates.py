"""Finds good assignments by slicing several orders, under each way to recompute."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from partitioner.solve.feasible import witness
from partitioner.solve.intervals import Intervals
from partitioner.solve.order_dp import least_weighted
from partitioner.solve.orders import topological_orders
from partitioner.solve.pair_dp import PairCosts, least_weighted_pairs
from partitioner.solve.positions import choose_bounds
from partitioner.solve.reads import block_reads
from partitioner.solve.recompute import recompute_costs, recomputed_units, table_size
from partitioner.solve.refine import refined
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from partitioner.solve.groups import Groups
    from partitioner.solve.intervals import Floats, Pairs
    from partitioner.solve.order_dp import Slicing
    from partitioner.solve.orders import Order
    from partitioner.solve.problem import Problem
    from partitioner.solve.reads import BlockRead

    Stop: TypeAlias = "Callable[[Candidate | None], bool]"

__all__ = ["Candidate", "Laid", "candidate_of", "slice_orders"]

COARSE_BOUNDS = 480
"""Positions of an order where a stage may end, at first."""
FINE_BOUNDS = 1_600
"""Positions if the coarse ones hold no legal slicing."""
FINE_ORDERS = 2
MOST_CELLS = 80_000_000
"""Intervals times stages of all orders, after which no further order is begun."""
BOUNDS_PER_STAGE = 12
PAIR_BOUNDS = 48
"""Positions where ranks hold two stages: the work grows with their fourth power."""
PAIR_REFINEMENTS = 4
CHOOSING_ORDERS = 3
"""Orders for which recomputation is chosen; its tables are dear."""
REFINEMENTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A legal assignment and its objective."""

    stage_of: tuple[int, ...]
    recomputed: tuple[bool, ...]
    objective_s: float
    source: str
    """What found it: a solver's name or "order-dp"."""


def candidate_of(
    problem: Problem, stage_of: Sequence[int], source: str
) -> Candidate | None:
    """Complete an assignment of stages with the least recomputation that fits.

    Returns:
        The candidate, or None if some rank cannot fit.
    """
    recomputed = recomputed_units(problem, stage_of)
    if recomputed is None:
        return None
    return Candidate(
        stage_of=tuple(stage_of),
        recomputed=recomputed,
        objective_s=score(problem, stage_of, recomputed).objective_s,
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


def slice_orders(
    laid: Laid, *, choose: bool, deadline: float, enough_s: float = 0.0
) -> Candidate | None:
    """Slice every order and keep the best.

    Args:
        laid: The groups and their orders.
        choose: Choose what to recompute; otherwise ``checkpointing="all"`` recomputes
            every block and anything else none.
        deadline: Value of ``time.monotonic()`` after which no further order is begun
            once there is a candidate.
        enough_s: An objective that needs no further order.

    Returns:
        The best legal assignment found, or None (ranks of two stages do not choose).
    """
    problem = laid.groups.problem

    def stop(best: Candidate | None) -> bool:
        late = time.monotonic() > deadline
        return best is not None and (late or best.objective_s <= enough_s)

    if problem.ranks < problem.stages:
        return None if choose else _best_pairs(laid, stop)
    if choose:
        return _best_choosing(laid, stop)
    coarse = max(COARSE_BOUNDS, BOUNDS_PER_STAGE * problem.stages)
    found = _best(laid, laid.tables(coarse), stop)
    if found is None and len(laid.groups) > coarse:
        fine = islice(laid.tables(FINE_BOUNDS), FINE_ORDERS)
        found = _best(laid, fine, stop)
    return found


def _best(laid: Laid, tables: Iterator[Intervals], stop: Stop) -> Candidate | None:
    """Slice coarse tables, then move the cuts of the best on finer ones."""
    best: Candidate | None = None
    place: tuple[Intervals, Slicing] | None = None
    for number, table in enumerate(tables):
        cells = len(table) ** 2 * laid.groups.problem.stages
        if place is not None and number * cells > MOST_CELLS:
            break
        best, sliced = _slice(laid, table, table.stage_costs(), best)
        if sliced is not None:
            place = table, sliced
        if stop(best):
            break
    return best if place is None else _refine(laid, *place, best, _plain_costs)


def _best_choosing(laid: Laid, stop: Stop) -> Candidate | None:
    """Choose recomputation on coarse tables, and move the cuts of each."""
    problem = laid.groups.problem
    most = max(table_size(problem), 3 * problem.stages)
    best: Candidate | None = None
    for table in islice(laid.tables(most), CHOOSING_ORDERS):
        best, sliced = _slice(laid, table, recompute_costs(table), best)
        if sliced is not None:
            best = _refine(laid, table, sliced, best, recompute_costs)
        if stop(best):
            break
    return best


def _refine(
    laid: Laid,
    table: Intervals,
    sliced: Slicing,
    best: Candidate | None,
    price: Callable[[Intervals, Pairs], list[Floats]],
) -> Candidate | None:
    """Move the cuts of a slicing to positions that its table left out."""
    most = len(table)
    for _ in range(REFINEMENTS if len(laid.groups) > most else 0):
        table, pairs = refined(table, sliced.cuts, most)
        best, finer = _slice(laid, table, price(table, pairs), best)
        if finer is None:
            break
        sliced = finer
    return best


def _plain_costs(table: Intervals, pairs: Pairs) -> list[Floats]:
    return [np.where(pairs, cost, math.inf) for cost in table.stage_costs()]


def _slice(
    laid: Laid,
    table: Intervals,
    costs: Sequence[Floats],
    best: Candidate | None,
) -> tuple[Candidate | None, Slicing | None]:
    """Return the better of a candidate and a table's slicing, and the slicing."""
    weights = laid.groups.problem.weights
    cutoff_s = math.inf if best is None else best.objective_s
    sliced = least_weighted(costs, weights, cutoff=cutoff_s)
    return _better(laid, table, sliced, best), sliced


def _better(
    laid: Laid, table: Intervals, sliced: Slicing | None, best: Candidate | None
) -> Candidate | None:
    """Return the better of a candidate and a table's slicing."""
    if sliced is None:
        return best
    stage_of = laid.groups.stage_of_units(table.stage_of_groups(sliced.cuts))
    found = candidate_of(laid.groups.problem, stage_of, "order-dp")
    if found is None or (best is not None and found.objective_s >= best.objective_s):
        return best
    return found


def _best_pairs(laid: Laid, stop: Stop) -> Candidate | None:
    """Slice for ranks that hold two stages; coarse tables, then finer ones."""
    problem = laid.groups.problem
    best: Candidate | None = None
    for table in laid.tables(max(PAIR_BOUNDS, 3 * problem.stages)):
        sliced = least_weighted_pairs(_pair_costs(table, None), problem.weights)
        best = _better(laid, table, sliced, best)
        finer, most = table, len(table)
        for _ in range(PAIR_REFINEMENTS if len(laid.groups) > most else 0):
            if sliced is None:
                break
            finer, pairs = refined(finer, sliced.cuts, most)
            costs = _pair_costs(finer, pairs)
            sliced = least_weighted_pairs(costs, problem.weights)
            best = _better(laid, finer, sliced, best)
        if stop(best):
            break
    return best


def _pair_costs(table: Intervals, pairs: Pairs | None) -> PairCosts:
    problem = table.groups.problem
    every = np.ones_like(table.work_s, dtype=np.bool_) if pairs is None else pairs
    stages = range(problem.stages)
    return PairCosts(
        time_s=[
            np.where(every & table.allowed(s), table.time_s(s), math.inf)
            for s in stages
        ],
        memory_bytes=[table.memory_bytes(problem.in_flight[s]) for s in stages],
        # Both stages of a rank count the engine's buffers.
        limits=[
            math.inf if limit is None else limit + problem.engine_bytes
            for limit in problem.limits
        ],
    )
