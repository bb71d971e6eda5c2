"""Decides what each stage recomputes, for one assignment and for whole tables."""

from __future__ import annotations

import math
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
"""Numbers in one (blocks, m + 1, m + 1) array."""


def forced(problem: Problem) -> tuple[bool, ...]:
    """Return what is recomputed if the solver has no choice."""
    everything = problem.checkpointing == "all"
    return tuple(everything and unit.block >= 0 for unit in problem.units)


def table_size(problem: Problem) -> int:
    """Return how many positions a table may have that prices chosen recomputation."""
    blocks = max((unit.block for unit in problem.units), default=-1) + 1
    return max(24, min(160, math.isqrt(TABLE_CELLS // max(1, blocks))))


def recomputed_units(
    problem: Problem, stage_of: Sequence[int]
) -> tuple[bool, ...] | None:
    """Choose the least recomputation under which every stage fits.

    Args:
        problem: With a memory limit and ``checkpointing="auto"``, else nothing is
            chosen.
        stage_of: Stage of each unit.

    Returns:
        Whether each unit is recomputed; None if some stage cannot fit.
    """
    limit = problem.memory_limit_bytes
    plain = forced(problem)
    found = score(problem, stage_of, plain)
    if limit is None or all(row.memory_bytes <= limit for row in found.stages):
        return plain
    if problem.checkpointing != "auto":
        return None
    parts = _parts(problem, stage_of)
    chosen: set[tuple[int, int]] = set()
    for stage, row in enumerate(found.stages):
        here = sorted(key for key in parts if key[0] == stage)
        picked = least_recompute([parts[key] for key in here], row.memory_bytes - limit)
        if picked is None:
            return None
        chosen.update(here[index] for index in picked)
    return tuple(
        (stage, unit.block) in chosen
        for unit, stage in zip(problem.units, stage_of, strict=True)
    )


def _parts(problem: Problem, stage_of: Sequence[int]) -> dict[tuple[int, int], Part]:
    """Return the parts of blocks by (stage, block)."""
    units = problem.units
    forward_s: dict[tuple[int, int], float] = {}
    saved: dict[tuple[int, int], int] = {}
    inputs: dict[tuple[int, int], int] = {}
    for unit, stage in zip(units, stage_of, strict=True):
        if unit.block >= 0:
            key = (stage, unit.block)
            forward_s[key] = forward_s.get(key, 0.0) + unit.forward_s
            saved[key] = saved.get(key, 0) + unit.saved_bytes
    for value in problem.values:
        source = (stage_of[value.producer], units[value.producer].block)
        for key in {(stage_of[u], units[u].block) for u in value.consumers} - {source}:
            inputs[key] = inputs.get(key, 0) + value.wire_bytes
    return {
        key: Part(
            forward_s=forward_s[key],
            gain_bytes=problem.in_flight[key[0]] * (saved[key] - inputs.get(key, 0)),
            peak_bytes=saved[key],
        )
        for key in forward_s
    }


def recompute_costs(table: Intervals) -> list[Floats]:
    """Return the stage costs of a table, with the least recomputation that fits.

    Exact for small tables; larger ones use the better of two greedy choices, the
    cheapest per byte first and the smallest peak first.
    """
    problem = table.groups.problem
    limit = problem.memory_limit_bytes
    if limit is None:
        return table.stage_costs()
    blocks = _Blocks(table)
    different = set(problem.in_flight)
    cells = (len(table) + 1) * len(table) // 2 * len(different)
    add = blocks.exact_s if cells <= EXACT_CELLS else blocks.greedy_s
    again_s = {
        count: add(table.memory_bytes(count) - limit, count) for count in different
    }
    return [
        np.where(
            table.allowed(stage),
            table.time_s + again_s[problem.in_flight[stage]],
            math.inf,
        )
        for stage in range(problem.stages)
    ]


class _Blocks:
    """Time, gain and peak of every block in every interval of a table."""

    def __init__(self, table: Intervals) -> None:
        units = table.groups.problem.units
        self.forward_s = _differences(
            table.block_prefix([unit.forward_s for unit in units])
        )
        self.saved = _differences(table.block_prefix([u.saved_bytes for u in units]))
        by_block: dict[int, list[int]] = {}
        for index, read in enumerate(table.reads):
            by_block.setdefault(read.block, []).append(index)
        self.gain = self.saved.copy()
        for block, indices in by_block.items():
            items = table.read_items(table.reads[index] for index in indices)
            self.gain[block] -= table.coverage(items)

    def exact_s(self, excess: Floats, in_flight: int) -> Floats:
        """Return the least recomputation time of each interval, one by one."""
        again_s = np.zeros_like(excess)
        for i, j in np.argwhere(np.triu(excess > 0, k=1)):
            parts = [
                Part(forward_s=s, gain_bytes=in_flight * gain, peak_bytes=saved)
                for s, gain, saved in zip(
                    self.forward_s[:, i, j].tolist(),
                    self.gain[:, i, j].tolist(),
                    self.saved[:, i, j].tolist(),
                    strict=True,
                )
            ]
            chosen = least_recompute(parts, float(excess[i, j]))
            again_s[i, j] = (
                math.inf if chosen is None else sum(parts[c].forward_s for c in chosen)
            )
        return again_s

    def greedy_s(self, excess: Floats, in_flight: int) -> Floats:
        """Return a feasible recomputation time of each interval, all at once."""
        useful = self.gain > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            per_byte = np.where(useful, self.forward_s / self.gain, math.inf)
        by_peak = np.where(useful, self.saved, math.inf)
        return np.minimum(
            self._prefix_s(per_byte, excess, in_flight),
            self._prefix_s(by_peak, excess, in_flight),
        )

    def _prefix_s(self, key: Floats, excess: Floats, in_flight: int) -> Floats:
        """Take blocks in the order of a key until the excess is covered."""
        if not len(key):
            return np.where(excess > 0, math.inf, 0.0)
        order = key.argsort(axis=0, kind="stable")
        useful = np.isfinite(np.take_along_axis(key, order, axis=0))
        gain = np.where(useful, np.take_along_axis(self.gain, order, axis=0), 0.0)
        peak = np.where(useful, np.take_along_axis(self.saved, order, axis=0), 0.0)
        spent_s = np.where(
            useful, np.take_along_axis(self.forward_s, order, axis=0), 0.0
        ).cumsum(axis=0)
        freed = in_flight * gain.cumsum(axis=0) - np.maximum.accumulate(peak, axis=0)
        enough = freed >= excess
        first = enough.argmax(axis=0)
        taken_s = np.take_along_axis(spent_s, first[None], axis=0)[0]
        taken_s = np.where(enough.any(axis=0), taken_s, math.inf)
        return np.where(excess > 0, taken_s, 0.0)


def _differences(prefix: Floats) -> Floats:
    return prefix[:, None, :] - prefix[:, :, None]
