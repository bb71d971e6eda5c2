"""The tables over the public workloads: known optima, rivals, perturbed costs."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.plan.rivals import balanced, raw_program
from benchmarks.plan.workloads import Workload, read_expert, read_optima, read_workloads
from partitioner.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.plan.rivals import Raw
    from benchmarks.plan.workloads import Optimum
    from partitioner.solve import Assignment

__all__ = ["Perturbed", "Solved", "perturbed_rows", "public_rows", "solved_json"]

SPREAD = 0.2
"""Perturbed costs are up to this share above or below the published ones."""


@dataclass(frozen=True)
class Solved:
    """One workload, solved by one solver, and its rivals."""

    workload: Workload
    known: Optimum
    found: Assignment
    stage_of: dict[int, int]
    load: float
    """Of the nodes' stages, from the file alone."""
    cpu_s: float
    """With the solver's own processes."""
    deepspeed: float
    expert: float | None
    raw: Raw | None
    raw_s: float


def public_rows(
    folder: Path, solver: str, gap: float, raw_s: float, clock: Callable[[], float]
) -> Iterator[Solved]:
    """Solve every workload.

    Args:
        folder: Holds ``dnn-partitioning``.
        solver: "cbc" or "highs".
        gap: Asked for.
        raw_s: Seconds for the raw program; 0: leave it out.
        clock: Returns CPU seconds so far.
    """
    known = read_optima(folder)
    for workload in read_workloads(folder):
        before_s = clock()
        found = solve(workload.problem, solver=solver, gap=gap, time_limit_s=120.0)
        cpu_s = clock() - before_s
        stage_of = workload.stage_of_nodes(found.stage_of)
        placed = read_expert(folder, workload)
        started_s = time.perf_counter()
        raw = raw_program(workload, raw_s) if raw_s else None
        yield Solved(
            workload=workload,
            known=known[workload.name],
            found=found,
            stage_of=stage_of,
            load=workload.load(stage_of),
            cpu_s=cpu_s,
            deepspeed=balanced(workload),
            expert=None if placed is None else workload.load(placed),
            raw=raw,
            raw_s=time.perf_counter() - started_s,
        )


def solved_json(row: Solved) -> dict[str, Any]:
    """Return what is written to the file, so that anyone can score it again."""
    return {
        "stage_of": {str(node): stage for node, stage in row.stage_of.items()},
        "objective": row.load,
        "bound": row.found.bound_s,
        "seconds": row.found.solve_s,
        "solver": row.found.solver,
        "proof": row.found.proof,
        "known_optimum": row.known.load,
    }


@dataclass(frozen=True)
class Perturbed:
    """One workload under costs drawn at random."""

    name: str
    seeds: int
    gap: float
    """The largest, over the seeds."""
    above_raw: float
    """The largest share by which ours is above what the raw program found."""
    below_bound: float
    """The largest share by which ours is below what the raw program proved."""
    raw_proven: int
    seconds: float
    raw_s: float


def perturbed_rows(folder: Path, seeds: int, raw_s: float) -> Iterator[Perturbed]:
    """Solve every workload under perturbed costs, beside the raw program."""
    for workload in read_workloads(folder):
        rows = [_one_seed(workload, seed, raw_s) for seed in range(seeds)]
        yield Perturbed(
            name=workload.name,
            seeds=seeds,
            gap=max(found.gap for found, _, _ in rows),
            above_raw=max(f.objective_s / raw.objective - 1 for f, raw, _ in rows),
            below_bound=max(
                1 - f.objective_s / raw.bound if raw.bound > 0 else 0.0
                for f, raw, _ in rows
            ),
            raw_proven=sum(raw.proven for _, raw, _ in rows),
            seconds=sum(found.solve_s for found, _, _ in rows),
            raw_s=sum(spent_s for _, _, spent_s in rows),
        )


def _one_seed(
    workload: Workload, seed: int, raw_s: float
) -> tuple[Assignment, Raw, float]:
    draw = random.Random(f"{workload.name}/{seed}")

    def shaken(cost: float) -> float:
        return cost * draw.uniform(1 - SPREAD, 1 + SPREAD)

    nodes = [
        node.model_copy(update={"time": shaken(node.time)})
        for node in workload.file.nodes
    ]
    scale = {node.id: shaken(1.0) for node in nodes}  # one cost per tensor
    edges = [
        edge.model_copy(update={"cost": edge.cost * scale[edge.source]})
        for edge in workload.file.edges
    ]
    file = workload.file.model_copy(update={"nodes": nodes, "edges": edges})
    other = Workload(name=workload.name, file=file)
    found = solve(other.problem, solver="highs", gap=0.0, time_limit_s=120.0)
    started_s = time.perf_counter()
    raw = raw_program(other, raw_s)
    return found, raw, time.perf_counter() - started_s
