"""Decides what each stage recomputes, for one assignment and for whole tables."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from partitioner.solve.knapsack import Part, least_recompute
from partitioner.solve.score import score

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from partitioner.solve.intervals import Intervals
    from partitioner.solve.problem import Problem

    Floats = npt.NDArray[np.float64]

__all__ = ["forced", "recompute_costs", "recomputed_units", "table_size"]

EXACT_CELLS = 3_000
"""Tables of up to this many (interval, stage) pairs are solved exactly."""
TABLE_CELLS = 2_000_000
"""Numbers in one (blocks, intervals) array."""


def forced(problem: Problem) -> tuple[bool, ...]:
    """Return what is recomputed if the solver has no choice."""
    everything = problem.checkpointing == "all"
    return tuple(everything and unit.block >= 0 for unit in problem.units)


def table_size(problem: Problem) -> int:
    """Return how many positions a table may have that prices chosen recomputation."""
    blocks = max((unit.block for unit in problem.units), default=-1) + 1
    return max(24, min(200, math.isqrt(2 * TABLE_CELLS // max(1, blocks))))


def recomputed_units(
    problem: Problem, stage_of: Sequence[int]
) -> tuple[bool, ...] | None:
    """Choose the least recomputation under which every rank fits.

    Args:
        problem: With a memory limit and ``checkpointing="auto"``, else nothing is
            chosen.
        stage_of: Stage of each unit.

    Returns:
        Whether each unit is recomputed; None if some rank cannot fit.
    """
    plain = forced(problem)
    found = score(problem, stage_of, plain)
    excess = [
        0 if limit is None else row.memory_bytes - limit
        for row, limit in zip(found.ranks, problem.limits, strict=True)
    ]
    if max(excess) <= 0:
        return plain
    if problem.checkpointing != "auto":
        return None
    tails = [row.freed_bytes for row in found.stages]
    parts = _parts(problem, stage_of, tails)
    chosen: set[tuple[int, int]] = set()
    for rank, over_bytes in enumerate(excess):
        rows = [found.stages[stage] for stage in problem.stages_of(rank)]
        held_bytes = max(row.peak_bytes for row in rows)
        stepping = sum(
            row.static_bytes + row.wire_bytes + row.step_bytes for row in rows
        )
        limit = problem.limits[rank]
        if limit is not None and stepping > limit:  # whatever is recomputed
            return None
        here = sorted(key for key in parts if problem.rank_of(key[0]) == rank)
        picked = least_recompute(
            [parts[key].beside(held_bytes) for key in here], over_bytes
        )
        if picked is None:
            return None
        chosen.update(here[index] for index in picked)
    return tuple(
        (stage, unit.block) in chosen
        for unit, stage in zip(problem.units, stage_of, strict=True)
    )


def _parts(
    problem: Problem, stage_of: Sequence[int], tails: Sequence[int]
) -> dict[tuple[int, int], Part]:
    """Return the parts of blocks by (stage, block).

    Args:
        problem: What was to be placed.
        stage_of: Stage of each unit.
        tails: ``freed_bytes`` of each stage.
    """
    units = problem.units
    forward_s: dict[tuple[int, int], float] = {}
    saved: dict[tuple[int, int], int] = {}
    beyond: dict[tuple[int, int], int] = {}
    inputs: dict[tuple[int, int], int] = {}
    for unit, stage in zip(units, stage_of, strict=True):
        if unit.block >= 0:
            key = (stage, unit.block)
            forward_s[key] = forward_s.get(key, 0.0) + unit.forward_s
            saved[key] = saved.get(key, 0) + unit.saved_bytes
            beyond[key] = max(beyond.get(key, 0), unit.beyond_bytes)
    for value in problem.values:
        source = (stage_of[value.producer], units[value.producer].block)
        for key in {(stage_of[u], units[u].block) for u in value.consumers} - {source}:
            inputs[key] = inputs.get(key, 0) + value.wire_bytes
    return {
        key: Part(
            forward_s=forward_s[key],
            gain_bytes=problem.in_flight[key[0]] * (saved[key] - inputs.get(key, 0)),
            peak_bytes=saved[key] + beyond[key] - tails[key[0]],
        )
        for key in forward_s
    }


def recompute_costs(
    table: Intervals, pairs: npt.NDArray[np.bool_] | None = None
) -> list[Floats]:
    """Return the stage costs of a table, with the least recomputation that fits.

    Exact for small tables; larger ones use the better of two greedy choices, the
    cheapest per byte first and the smallest peak first.

    Args:
        table: Intervals of one order, for ranks of one stage each.
        pairs: Which intervals are of interest, shape (m + 1, m + 1); None: all.

    Returns:
        For each stage, seconds of each interval; infinite if it cannot fit.
    """
    problem = table.groups.problem
    if not problem.limited:
        return table.stage_costs()
    wanted = np.triu(np.ones_like(table.work_s, dtype=np.bool_), k=1)
    if pairs is not None:
        wanted &= pairs
    blocks = _Blocks(table, wanted)
    kinds = list(zip(problem.in_flight, problem.limits, strict=True))
    exact = int(wanted.sum()) * len(set(kinds)) <= EXACT_CELLS
    again_s = {
        (count, limit): blocks.again_s(count, limit, exact=exact)
        for count, limit in set(kinds)
    }
    return [
        np.where(
            table.allowed(stage),
            table.time_s(stage) + again_s[kind] / problem.speed(stage),
            math.inf,
        )
        for stage, kind in enumerate(kinds)
    ]


class _Blocks:
    """Time, gain and peak of every block in every wanted interval.

    Arrays have the shape (blocks, intervals).
    """

    def __init__(self, table: Intervals, wanted: npt.NDArray[np.bool_]) -> None:
        units = table.groups.problem.units
        self.table = table
        self.wanted = wanted
        start, stop = np.nonzero(wanted)
        forward_s = table.block_prefix([unit.forward_s for unit in units])
        saved = table.block_prefix([unit.saved_bytes for unit in units])
        self.forward_s = forward_s[:, stop] - forward_s[:, start]
        self.saved = saved[:, stop] - saved[:, start]
        tail = table.freed_bytes[start, stop]
        most = self.saved + table.block_beyond(start, stop) - tail
        self.peak = (most - table.plain_peak_bytes[start, stop]).clip(0)
        """What recomputing brings back beyond what a backward holds anyway."""
        self.gain = self.saved.copy()
        by_block: dict[int, list[int]] = {}
        for index, read in enumerate(table.reads):
            by_block.setdefault(read.block, []).append(index)
        for block, indices in by_block.items():
            items = table.read_items(table.reads[index] for index in indices)
            self.gain[block] -= table.coverage(items)[start, stop]

    def again_s(self, in_flight: int, limit: int | None, *, exact: bool) -> Floats:
        """Return the time at speed 1 that makes each interval fit, or infinity."""
        spent_s = np.full(self.wanted.shape, math.inf)
        if limit is None:
            spent_s[self.wanted] = 0.0
            return spent_s
        excess = (self.table.memory_bytes(in_flight) - limit)[self.wanted]
        choose = self.exact_s if exact else self.greedy_s
        spent_s[self.wanted] = choose(excess, in_flight)
        spent_s[self.table.stepping_bytes > limit] = math.inf
        return spent_s

    def exact_s(self, excess: Floats, in_flight: int) -> Floats:
        """Return the least recomputation time of each interval, one by one."""
        again_s = np.zeros_like(excess)
        for index in np.flatnonzero(excess > 0):
            parts = [
                Part(forward_s=s, gain_bytes=in_flight * gain, peak_bytes=peak)
                for s, gain, peak in zip(
                    self.forward_s[:, index].tolist(),
                    self.gain[:, index].tolist(),
                    self.peak[:, index].tolist(),
                    strict=True,
                )
            ]
            chosen = least_recompute(parts, float(excess[index]))
            again_s[index] = (
                math.inf if chosen is None else sum(parts[c].forward_s for c in chosen)
            )
        return again_s

    def greedy_s(self, excess: Floats, in_flight: int) -> Floats:
        """Return a feasible recomputation time of each interval, all at once."""
        again_s = np.where(excess > 0, math.inf, 0.0)
        for ranking in self._rankings:
            again_s = np.minimum(again_s, ranking.taken_s(excess, in_flight))
        return again_s

    @cached_property
    def _rankings(self) -> list[_Ranking]:
        if not len(self.gain):
            return []
        useful = self.gain > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            per_byte = np.where(useful, self.forward_s / self.gain, math.inf)
        by_peak = np.where(useful, self.peak, math.inf)
        return [_Ranking(self, key, useful) for key in (per_byte, by_peak)]


class _Ranking:
    """Running totals of the blocks of each interval, in the order of a key."""

    def __init__(
        self, blocks: _Blocks, key: Floats, useful: npt.NDArray[np.bool_]
    ) -> None:
        order = key.argsort(axis=0, kind="stable")

        def ranked(numbers: Floats) -> Floats:
            kept = np.where(useful, numbers, 0.0)
            return np.take_along_axis(kept, order, axis=0)

        self.gain = ranked(blocks.gain).cumsum(axis=0)
        self.peak = np.maximum.accumulate(ranked(blocks.peak), axis=0)
        self.spent_s = ranked(blocks.forward_s).cumsum(axis=0)

    def taken_s(self, excess: Floats, in_flight: int) -> Floats:
        """Take blocks until the excess is covered; return their time, or infinity."""
        enough = in_flight * self.gain - self.peak >= excess
        first = enough.argmax(axis=0)
        taken_s = np.take_along_axis(self.spent_s, first[None], axis=0)[0]
        taken_s = np.where(enough.any(axis=0), taken_s, math.inf)
        return np.where(excess > 0, taken_s, 0.0)
