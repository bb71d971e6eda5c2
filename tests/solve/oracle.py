"""Brute force over all assignments of small problems, and random small problems."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from partitioner.solve import Constraint, Device, Problem, Tie, Unit, Value, score

if TYPE_CHECKING:
    from collections.abc import Iterator


def stage_assignments(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield every monotone assignment that obeys pins and parameters."""
    edges = list(problem.order_edges)
    if problem.transfer == "hops":
        edges += [(v.producer, c) for v in problem.values for c in v.consumers]
    if not any(unit.trainable for unit in problem.units):
        return
    weighted = {
        i for i, unit in enumerate(problem.units) if unit.trainable or unit.frozen
    }
    stages = range(problem.stages)
    choices = [
        stages if unit.pinned_stage is None else [unit.pinned_stage % problem.stages]
        for unit in problem.units
    ]
    for stage_of in itertools.product(*choices):
        if (
            all(stage_of[a] <= stage_of[b] for a, b in edges)
            and {stage_of[unit] for unit in weighted} == set(stages)
            and all(obeys(problem, c, stage_of) for c in problem.constraints)
        ):
            yield stage_of


def obeys(problem: Problem, constraint: Constraint, stage_of: tuple[int, ...]) -> bool:
    places = [{stage_of[unit] for unit in part} for part in constraint.parts]
    if any(len(place) > 1 for place in places):
        return False
    found = [min(place) for place in places]
    if constraint.kind == "pin":
        return set(found) == {constraint.stage % problem.stages}
    if constraint.kind == "equal":
        return len({found.count(stage) for stage in range(problem.stages)}) == 1
    return True


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
    rows = score(problem, stage_of, recomputed).ranks
    return all(
        limit is None or row.memory_bytes <= limit
        for row, limit in zip(rows, problem.limits, strict=True)
    )


def best_objective_s(problem: Problem, order: tuple[int, ...] | None = None) -> float:
    """Return the least objective of all legal assignments, infinite if there is none.

    With an order of the units, only of those that slice it.
    """
    best = math.inf
    for stage_of in stage_assignments(problem):
        if order is not None:
            laid = [stage_of[unit] for unit in order]
            if laid != sorted(laid):
                continue
        for recomputed in recomputations(problem, stage_of):
            found = score(problem, stage_of, recomputed).objective_s
            if found < best and fits(problem, stage_of, recomputed):
                best = found
    return best


@st.composite
def problems(
    draw,
    *,
    max_units=7,
    limited=None,
    checkpointing=None,
    rich=True,
    varied=False,
    far=False,
) -> Problem:
    """Draw a small problem; numbers are few, so that ties and zeros are common.

    Boundaries may be far ones, with ``far`` some surely are. Varied ones have other
    objectives, devices, schedules, transfers and constraints.
    """
    plain = draw(_plain(max_units, limited, checkpointing, rich=rich, far=far))
    return draw(_varied(plain, far)) if varied else plain


@st.composite
def _varied(draw, problem: Problem, far: bool) -> Problem:
    paired = draw(st.booleans())
    if paired:
        stages = draw(st.sampled_from([2, 4]))
        held = tuple(draw(st.integers(1, 4)) for _ in range(stages))
        problem = dataclasses.replace(
            problem,
            schedule="dualpipev",
            stages=stages,
            in_flight=held,
            far=draw(_far(stages, surely=far)),
        )
    elif draw(st.booleans()):
        problem = dataclasses.replace(problem, schedule="eager-1f1b")
    transfers = ["hops"]
    if not paired and problem.checkpointing == "none" and not far:
        transfers.append("ends")
    transfer = draw(st.sampled_from(transfers))
    changes = {
        "objective": draw(st.sampled_from(["step", "bottleneck"])),
        "transfer": transfer,
        "far": problem.far if transfer == "hops" else (),
        "constraints": tuple(draw(st.lists(_constraints(problem), max_size=1))),
    }
    if draw(st.booleans()):
        changes["devices"] = tuple(
            Device(
                speed=draw(st.sampled_from([1.0, 1.0, 0.5, 3.0])),
                memory_limit_bytes=draw(st.sampled_from([None, None, 60])),
            )
            for _ in range(problem.ranks)
        )
    return dataclasses.replace(problem, **changes)


def _far(stages: int, *, surely: bool) -> st.SearchStrategy[tuple[bool, ...]]:
    some = st.tuples(*[st.booleans()] * (stages - 1))
    if surely:
        return some.filter(any)
    return st.one_of(st.just(()), some, some)


@st.composite
def _constraints(draw, problem: Problem) -> Constraint:
    kind = draw(st.sampled_from(["together", "pin", "equal"]))
    units = draw(st.permutations(range(len(problem.units))))
    if kind == "equal":
        size = min(len(units), problem.stages)
        parts = tuple((unit,) for unit in units[:size])
    else:
        parts = (tuple(units[: draw(st.integers(1, 2))]),)
    stage = draw(st.integers(-problem.stages, problem.stages - 1))
    return Constraint(kind=kind, words=kind, parts=parts, stage=stage)


@st.composite
def _plain(draw, max_units, limited, checkpointing, *, rich, far) -> Problem:
    count = draw(st.integers(2, max_units))
    seconds = st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.0, 5.0])
    size = st.sampled_from([0, 0, 1, 4, 16])
    far_seconds = st.sampled_from([6.0, 2.0, 0.5, 0.0, None])
    pins = st.sampled_from([None] * 12 + [0, -1]) if rich else st.none()
    blocks = [draw(st.sampled_from([-1, 0, 0, 1, 2])) for _ in range(count)]
    units = tuple(
        Unit(
            name=f"u{index}",
            forward_s=draw(seconds),
            backward_s=draw(seconds),
            saved_bytes=draw(size),
            static_bytes=draw(size),
            trainable=draw(st.sampled_from([True, True, True, False])),
            frozen=draw(st.sampled_from([False, False, True])),
            block=blocks[index],
            pinned_stage=draw(pins),
            step_bytes=draw(size),
            transient_bytes=draw(st.sampled_from([0, 0, 2, 8])),
            beyond_bytes=draw(st.sampled_from([0, 0, 0, 4])),
            tail=blocks[index] < 0 and draw(st.booleans()),
            passing_bytes=draw(st.sampled_from([0, 0, 0, 4])),
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
                    far_hop_s=draw(far_seconds),
                )
            )
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = draw(st.lists(pairs, max_size=1)) if rich else []
    ties = draw(st.lists(st.tuples(pairs, size), max_size=1 + rich))
    stage_count = draw(st.sampled_from([2, 3, 3] if far else [1, 2, 2, 3, 3]))
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
        reserved_bytes=draw(st.sampled_from([0, 3])),
        engine_bytes=draw(st.sampled_from([0, 0, 5])),
        order_edges=tuple((min(e), max(e)) for e in edges if e[0] != e[1]),
        ties=tuple(
            Tie(
                units=tuple(sorted(set(pair))),
                static_bytes=held,
                step_bytes=held // 2,
            )
            for pair, held in ties
        ),
        checkpointing=checkpointing
        or draw(st.sampled_from(["none", "auto", "auto", "all"])),
        far=draw(_far(stage_count, surely=far)),
    )


def unlimited(problem: Problem) -> Problem:
    devices = tuple(Device(speed=device.speed) for device in problem.devices)
    return dataclasses.replace(problem, memory_limit_bytes=None, devices=devices)
