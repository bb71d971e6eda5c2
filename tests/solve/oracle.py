"""Brute force over all assignments of small problems, and random small problems."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from partitioner.solve import Problem, Tie, Unit, Value, score

if TYPE_CHECKING:
    from collections.abc import Iterator


def stage_assignments(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield every monotone assignment that obeys pins and trainable parameters."""
    edges = [(v.producer, c) for v in problem.values for c in v.consumers]
    edges += problem.order_edges
    trainable = {i for i, unit in enumerate(problem.units) if unit.trainable}
    for tie in problem.ties:
        trainable.update(tie.units if tie.trainable else ())
    stages = range(problem.stages)
    choices = [
        stages if unit.pinned_stage is None else [unit.pinned_stage % problem.stages]
        for unit in problem.units
    ]
    for stage_of in itertools.product(*choices):
        if all(stage_of[a] <= stage_of[b] for a, b in edges) and {
            stage_of[unit] for unit in trainable
        } == set(stages):
            yield stage_of


def recomputations(
    problem: Problem, stage_of: tuple[int, ...]
) -> Iterator[tuple[bool, ...]]:
    """Yield every allowed choice of what to recompute."""
    parts = sorted(
        {
            (s, u.block)
            for s, u in zip(stage_of, problem.units, strict=True)
            if u.block >= 0
        }
    )
    subsets: Iterator[tuple[bool, ...]]
    if problem.checkpointing == "auto":
        subsets = itertools.product((False, True), repeat=len(parts))
    else:
        subsets = iter([(problem.checkpointing == "all",) * len(parts)])
    for subset in subsets:
        chosen = dict(zip(parts, subset, strict=True))
        yield tuple(
            chosen.get((s, u.block), False)
            for s, u in zip(stage_of, problem.units, strict=True)
        )


def fits(problem: Problem, stage_of, recomputed) -> bool:
    limit = problem.memory_limit_bytes
    rows = score(problem, stage_of, recomputed).stages
    return limit is None or all(row.memory_bytes <= limit for row in rows)


def best_step_s(problem: Problem, order: tuple[int, ...] | None = None) -> float:
    """Return the least step time of all legal assignments, infinite if there is none.

    With an order of the units, only of those that slice it.
    """
    best = math.inf
    for stage_of in stage_assignments(problem):
        if order is not None:
            laid = [stage_of[unit] for unit in order]
            if laid != sorted(laid):
                continue
        for recomputed in recomputations(problem, stage_of):
            step_s = score(problem, stage_of, recomputed).step_s
            if step_s < best and fits(problem, stage_of, recomputed):
                best = step_s
    return best


@st.composite
def problems(
    draw, *, max_units=7, limited=None, checkpointing=None, rich=True
) -> Problem:
    """Draw a small problem; numbers are few, so that ties and zeros are common."""
    count = draw(st.integers(2, max_units))
    seconds = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 5.0])
    size = st.sampled_from([0, 0, 1, 4, 16])
    pins = st.sampled_from([None] * 12 + [0, -1]) if rich else st.none()
    units = tuple(
        Unit(
            name=f"u{index}",
            forward_s=draw(seconds),
            backward_s=draw(seconds),
            saved_bytes=draw(size),
            static_bytes=draw(size),
            trainable=draw(st.sampled_from([True, True, True, False])),
            block=draw(st.sampled_from([-1, 0, 0, 1, 2])),
            pinned_stage=draw(pins),
        )
        for index in range(count)
    )
    values = []
    for producer in range(count - 1):
        for _ in range(draw(st.integers(0, 2))):
            later = st.integers(producer + 1, count - 1)
            readers = draw(st.sets(later, min_size=1, max_size=3))
            values.append(
                Value(
                    producer=producer,
                    consumers=tuple(sorted(readers)),
                    hop_s=draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])),
                    wire_bytes=draw(st.sampled_from([0, 1, 2, 8])),
                )
            )
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(pairs, max_size=1)) if rich else []
    ties = draw(st.lists(st.tuples(pairs, size, st.booleans()), max_size=1 + rich))
    stage_count = draw(st.sampled_from([1, 2, 2, 3, 3]))
    micro_batches = draw(st.sampled_from([1, 2, 4, 32]))
    has_limit = draw(st.booleans()) if limited is None else limited
    return Problem(
        units=units,
        values=tuple(values),
        stages=stage_count,
        micro_batches=micro_batches,
        in_flight=tuple(
            min(stage_count - s, micro_batches) for s in range(stage_count)
        ),
        memory_limit_bytes=draw(st.integers(20, 120)) if has_limit else None,
        order_edges=tuple((min(e), max(e)) for e in edges if e[0] != e[1]),
        ties=tuple(
            Tie(units=tuple(sorted(set(pair))), static_bytes=held, trainable=flag)
            for pair, held, flag in ties
        ),
        checkpointing=checkpointing
        or draw(st.sampled_from(["none", "auto", "auto", "all"])),
    )


def unlimited(problem: Problem) -> Problem:
    return dataclasses.replace(problem, memory_limit_bytes=None)
