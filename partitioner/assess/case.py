"""A solved problem, with all that was known when it was stated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from partitioner.assess.predict import predict
from partitioner.solve import Score, score

if TYPE_CHECKING:
    from partitioner.cost import Units
    from partitioner.costed import CostedGraph
    from partitioner.options import Options
    from partitioner.simulate import Simulation
    from partitioner.solve import Assignment, Problem

__all__ = ["Case"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is judged."""

    costed: CostedGraph
    problem: Problem
    units: Units
    """The nodes behind the problem's units."""
    assignment: Assignment
    options: Options

    @cached_property
    def score(self) -> Score:
        """Time and memory of every stage."""
        found = self.assignment
        return score(self.problem, found.stage_of, found.recomputed)

    @cached_property
    def simulation(self) -> Simulation:
        """One step under the schedule that was asked for."""
        found = self.assignment
        return predict(
            self.problem, found.stage_of, found.recomputed, self.options.schedule
        )

    @property
    def rank_name(self) -> str:
        """What to call a rank: a stage, where each has one."""
        return "stage" if self.problem.ranks == self.problem.stages else "rank"
