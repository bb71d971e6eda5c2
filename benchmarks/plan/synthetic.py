"""A synthetic graph of 20,000 units, and joint checkpointing under memory limits."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.solve import Problem, Unit, Value, score, solve
from partitioner.solve.candidates import candidate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.solve import Assignment

__all__ = ["FACTORS", "Checkpointed", "checkpointing_rows", "large_graph"]

FACTORS = (1.2, 0.6, 0.4, 0.25)
"""Memory limits, as shares of what the largest stage needs without recomputation."""


def large_graph(layers: int = 606, width: int = 33, *, stages: int = 8) -> Problem:
    """Return a GPT-like graph: residuals, a shared mask, ops dear and cheap."""
    return _Graph(seed=0).layers(layers, width, stages=stages, saved_share=1.0)


@dataclass(frozen=True)
class Checkpointed:
    """One problem under one memory limit."""

    name: str
    factor: float
    joint: Assignment
    balanced_s: float
    """Balance, then recompute the least that fits; infinite if nothing does."""
    recomputed: int
    """Units that the joint plan recomputes."""


def checkpointing_rows(solver: str) -> Iterator[Checkpointed]:
    """Yield a row per synthetic model and memory limit."""
    for layers, stages, seed in ((24, 4, 1), (24, 8, 2), (48, 8, 3), (96, 16, 4)):
        graph = _Graph(seed=seed)
        problem = graph.layers(layers, 9, stages=stages, saved_share=8.0)
        yield from _under_limits(f"{layers} layers, {stages} stages", problem, solver)


def _under_limits(name: str, problem: Problem, solver: str) -> Iterator[Checkpointed]:
    free = solve(problem, solver=solver)
    rows = score(problem, free.stage_of, free.recomputed).ranks
    need = max(row.memory_bytes for row in rows)
    for factor in FACTORS:
        limited = dataclasses.replace(problem, memory_limit_bytes=int(factor * need))
        after = candidate_of(limited, free.stage_of, "balanced")
        joint = solve(limited, solver=solver, time_limit_s=30.0)
        yield Checkpointed(
            name=name,
            factor=factor,
            joint=joint,
            balanced_s=after.objective_s if after else float("inf"),
            recomputed=sum(joint.recomputed),
        )


class _Graph:
    """Builds transformer-like problems; blocks are layers."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.units: list[Unit] = []
        self.readers: list[set[int]] = []

    def layers(
        self, count: int, width: int, *, stages: int, saved_share: float
    ) -> Problem:
        """Return ``count`` layers of ``width`` units."""
        mask = self._add(0.001, -1, [], saved_share)
        last = self._add(2.0, -1, [], saved_share)
        for layer in range(count):
            entry, share = last, self.draw.uniform(0.7, 1.3)
            for step in range(width - 1):
                work = (share * self.draw.uniform(0.5, 1.5), 0.0, 0.02)[step % 3]
                reads = [last, mask] if step == 0 else [last]
                last = self._add(work, layer, reads, saved_share)
            last = self._add(0.02, layer, [last, entry], saved_share)
        micro_batches = 4 * stages
        return Problem(
            units=tuple(self.units),
            values=tuple(
                Value(
                    producer=unit,
                    consumers=tuple(sorted(readers)),
                    hop_s=0.02,
                    wire_bytes=1000,
                )
                for unit, readers in enumerate(self.readers)
                if readers
            ),
            stages=stages,
            micro_batches=micro_batches,
            in_flight=tuple(min(stages - s, micro_batches) for s in range(stages)),
        )

    def _add(self, work: float, block: int, reads: list[int], saved: float) -> int:
        index = len(self.units)
        self.units.append(
            Unit(
                name=f"u{index}",
                forward_s=work,
                backward_s=2 * work,
                saved_bytes=int(1000 * saved * (0.5 + work)) if work else 0,
                static_bytes=int(2000 * work) if work > 0.1 else 0,  # noqa: PLR2004
                trainable=work > 0.1,  # noqa: PLR2004
                block=block,
            )
        )
        self.readers.append(set())
        for read in reads:
            self.readers[read].add(index)
        return index
