"""Solves a problem again with one thing changed: what would that give?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.capture import capture
from partitioner.capture.inputs import CallArguments
from partitioner.cost import price, problem_for
from partitioner.errors import InfeasibleError, OptionError
from partitioner.solve import solve

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.assess.case import Case
    from partitioner.costed import CostedGraph
    from partitioner.options import Options
    from partitioner.solve import Problem

__all__ = ["Solver", "Variant"]

MOST_S = 10.0
"""Seconds for one variant: an answer to "what if" need not be proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The best plan found for a changed problem, or why there is none."""

    change: str
    """What is changed, in words."""
    step_s: float | None = None
    """Step time by the formula; None if there is no plan."""
    simulated_s: float | None = None
    bubble_share: float | None = None
    """Of the simulation."""
    memory_bytes: int | None = None
    """Peak of the fullest rank."""
    reason: str = ""
    """Why there is no plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """Solves variants of one case."""

    case: Case
    tell: Callable[[str], None]
    """Called with a sentence before each variant is solved."""

    def with_stages(self, stages: int) -> Variant:
        """Solve for another number of stages, with as many micro-batches."""
        change = f"{stages} stage{'s' if stages > 1 else ''}"
        options = replace(self.case.options, stages=stages)
        return self._solved(change, self.case.costed, options)

    def without_memory_limit(self) -> Variant:
        """Solve for devices with any amount of memory."""
        problem = self.case.problem
        devices = tuple(
            replace(one, memory_limit_bytes=None) for one in problem.devices
        )
        problem = replace(problem, memory_limit_bytes=None, devices=devices)
        return self._changed("no memory limit", problem)

    def with_free_messages(self) -> Variant:
        """Solve for links that take no time."""
        values = tuple(
            replace(
                value,
                hop_s=0.0,
                gradient_hop_s=0.0,
                far_hop_s=None,
                far_gradient_hop_s=None,
            )
            for value in self.case.problem.values
        )
        problem = replace(self.case.problem, values=values)
        return self._changed("messages that take no time", problem)

    def without_constraints(self) -> Variant:
        """Solve without the user's wishes; those on cuts need another recording."""
        graph = self.case.costed.graph
        change = "no constraints"
        if not (graph.constraints.keep_together or graph.constraints.no_cut_inside):
            problem = self.case.problem
            needs = tuple(one for one in problem.constraints if not one.wished)
            return self._changed(change, replace(problem, constraints=needs))
        self.tell(f"recording the model again with {change}")
        args, kwargs = graph.example
        free = capture(
            graph.model,
            CallArguments(args=args, kwargs=dict(kwargs)),
            dtype=graph.dtype if graph.casts else None,
            leaf=graph.constraints.leaf,
        )
        costed = price(free, profile=self.case.costed.profile)
        return self._solved(change, costed, self.case.options)

    def _solved(self, change: str, costed: CostedGraph, options: Options) -> Variant:
        self.tell(f"solving with {change}")
        try:
            problem, units = problem_for(costed, options)
            case = replace(
                self.case, costed=costed, problem=problem, units=units, options=options
            )
            return _variant(change, case)
        except (InfeasibleError, OptionError) as error:
            return Variant(change=change, reason=error.message)

    def _changed(self, change: str, problem: Problem) -> Variant:
        self.tell(f"solving with {change}")
        try:
            return _variant(change, replace(self.case, problem=problem))
        except InfeasibleError as error:
            return Variant(change=change, reason=error.message)


def _variant(change: str, case: Case) -> Variant:
    found = solve(
        case.problem,
        solver=case.options.solver,
        gap=case.options.gap,
        time_limit_s=min(case.options.time_limit_s, MOST_S),
    )
    solved = replace(case, assignment=found)
    return Variant(
        change=change,
        step_s=found.objective_s,
        simulated_s=solved.simulation.step_s,
        bubble_share=solved.simulation.bubble_share,
        memory_bytes=max(rank.memory_bytes for rank in solved.score.ranks),
    )
