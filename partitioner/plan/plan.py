"""③ Plan: where everything runs, what it costs, how good that is, and what comes next.

Made by ``api.partition``; it turns itself into layers, a pipeline module, a DeepSpeed
configuration, a batch function, a proof of equality and a file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from partitioner.assess import Case, Comparison, Explanation, compare, explain, predict
from partitioner.cost import problem_for
from partitioner.cost.memory import Engine
from partitioner.emit import Placement
from partitioner.files import write_whole
from partitioner.graph import ModelGraph, info
from partitioner.plan.costs import DEPTH, By, Sort, breakdown
from partitioner.plan.file import load_plan, save_plan
from partitioner.plan.page import save_page
from partitioner.plan.stages import StagePlan, stage_plans
from partitioner.plan.training import TrainablePlan
from partitioner.plan.view import plan_dict
from partitioner.report import plan_text
from partitioner.runtime.timeline import trace_steps
from partitioner.simulate import chrome_trace, grid
from partitioner.simulate.grid import LEGEND
from partitioner.solve import Assignment, Problem, Score, score
from partitioner.timeline import forecast, replanned
from partitioner.verify import Verification, verify
from partitioner.verify.inputs import input_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import fx, nn

    from partitioner.cost import Units
    from partitioner.costed import CostedGraph
    from partitioner.options import Options
    from partitioner.simulate import Simulation
    from partitioner.solve.problem import Schedule

__all__ = ["Plan", "StagePlan"]


@dataclass(frozen=True, kw_only=True)
class Plan(TrainablePlan):
    """A model's stages, proven optimal up to ``gap``."""

    costed: CostedGraph
    problem: Problem
    units: Units
    assignment: Assignment
    options: Options

    def __str__(self) -> str:
        """Return the report as text."""
        return plan_text(self.to_dict())

    # -- what was decided -------------------------------------------------------------

    @property
    def graph(self) -> ModelGraph:
        """The recorded model."""
        return self.costed.graph

    @cached_property
    def score(self) -> Score:
        """Time and memory of every stage."""
        found = self.assignment
        return score(self.problem, found.stage_of, found.recomputed)

    @cached_property
    def stages(self) -> tuple[StagePlan, ...]:
        """Every stage: modules, parameters, FLOPs, times, memory, what it sends."""
        return stage_plans(self.costed, self.score, self.placement, self._engine)

    @property
    def _engine(self) -> Engine:
        return Engine(
            dtype=self.graph.dtype,
            optimizer=self.options.optimizer,
            zero_stage=self.options.zero_stage,
            replicas=self.options.replicas,
            offload_optimizer=self.options.offload_optimizer,
        )

    def breakdown(
        self, by: By = "module", *, depth: int = DEPTH, sort: Sort | None = None
    ) -> dict[str, Any]:
        """Return what the parts of the model cost, as plain data.

        Args:
            by: ``"module"``, ``"operator"`` or ``"node"``.
            depth: Levels of modules.
            sort: ``"forward"``, ``"backward"``, ``"memory"``, ``"flops"`` or
                ``"params"``, the largest first; None: in the order of the program.

        Raises:
            OptionError: An argument is no choice.
        """
        return breakdown(self, by, depth=depth, sort=sort)

    @property
    def objective_s(self) -> float:
        """Predicted time of one training step, by the formula that was minimised."""
        return self.assignment.objective_s

    @property
    def bound_s(self) -> float:
        """No plan has a shorter step (under the same prices)."""
        return self.assignment.bound_s

    @property
    def gap(self) -> float:
        """Relative distance between objective and bound; 0: proven optimal."""
        return self.assignment.gap

    @cached_property
    def placement(self) -> Placement:
        """Stage and activation checkpoint of every node."""
        stage_of: dict[fx.Node, int] = {}
        block_of: dict[fx.Node, str] = {}
        for unit, nodes in enumerate(self.units.nodes):
            block = self.problem.units[unit].block
            for node in nodes:
                if info(node).kind != "compute":
                    continue
                stage_of[node] = self.assignment.stage_of[unit]
                if self.assignment.recomputed[unit]:
                    block_of[node] = self.problem.block_names[block]
        return Placement(
            stages=self.problem.stages, stage_of=stage_of, block_of=block_of
        )

    # -- how good that is -------------------------------------------------------------

    @cached_property
    def simulation(self) -> Simulation:
        """One training step, simulated under the plan's own schedule."""
        return self.simulate(self.options.schedule)

    def simulate(self, schedule: str) -> Simulation:
        """Simulate one training step of these stages under some schedule.

        Args:
            schedule: ``"1f1b"``, ``"eager-1f1b"``, ``"gpipe"``, ``"zb-h1"`` or
                ``"zb-h2"``; with two stages on a rank also ``"interleaved"`` or
                ``"dualpipev"``.

        Raises:
            OptionError: The schedule is not known, or cannot run these stages.
        """
        found = self.assignment
        return predict(self.problem, found.stage_of, found.recomputed, schedule)

    def timeline(self) -> dict[str, Any]:
        """Return the simulated step as rows of text (``rows``) and their ``legend``."""
        return {"rows": grid(self.simulation).splitlines(), "legend": LEGEND}

    def compare(self) -> Comparison:
        """Score what DeepSpeed's methods and two rules of thumb would cut instead."""
        return compare(self._case)

    def explain(self, progress: Callable[[str], None] | None = None) -> Explanation:
        """Find out what limits the plan, and what one stage less or more would give.

        Solves up to five more problems, each for at most ten seconds.

        Args:
            progress: Called with a sentence before each of them.
        """
        return explain(self._case, progress)

    @property
    def _case(self) -> Case:
        return Case(
            costed=self.costed,
            problem=self.problem,
            units=self.units,
            assignment=self.assignment,
            options=self.options,
        )

    # -- proof and files -------------------------------------------------------------

    def _scheduled(self, schedule: Schedule) -> Plan:
        options = replace(self.options, schedule=schedule)
        statement, units = problem_for(self.costed, options)
        return replace(self, options=options, problem=statement, units=units)

    def _assigned(self, assignment: Assignment) -> Plan:
        return replace(self, assignment=assignment)

    def verify(self, inputs: Any = None) -> Verification:
        """Run the cut model against the original, forward and backward.

        Args:
            inputs: One micro-batch, as ``example_inputs``; None: the example.

        Raises:
            PartitionerError: The model has no weights to run with.
        """
        tensors = input_tensors(self.graph, inputs)
        return verify(self.graph, self.placement, tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for reports and files (``schema_version`` 1)."""
        return plan_dict(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; an existing file is replaced as a whole.

        Raises:
            PartitionerError: The example inputs hold something JSON cannot, or the
                file cannot be written.
        """
        save_plan(self, path)

    def save_trace(self, path: str | Path) -> None:
        """Write the simulated step as a Chrome trace, for Perfetto.

        Raises:
            PartitionerError: The file cannot be written.
        """
        write_whole(path, json.dumps(chrome_trace(self.simulation)), "the trace")

    def save_html(
        self, path: str | Path, *, progress: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """Write a page with pictures, and return what it shows, as plain data.

        It has :meth:`compare` and :meth:`explain` in it, and takes as long.

        Args:
            path: The file; an existing one is replaced as a whole.
            progress: As for :meth:`explain`.

        Raises:
            PartitionerError: No extra ``[html]``, or the file cannot be written.
        """
        return save_page(self, path, progress)

    # -- what a run tells -------------------------------------------------------------

    def trace(
        self, engine: Any, path: str | Path, *, modules: bool = True
    ) -> AbstractContextManager[None]:
        """Record the training steps taken in a ``with`` block, next to the forecast.

        Args:
            engine: From :meth:`initialize`; every rank must enter and leave together.
            path: File that rank 0 writes: for Perfetto, ``partitioner trace``, replan.
            modules: Whether to time the modules that stages call whole.

        Raises:
            RuntimeGuardError: No training step was taken inside.
            PartitionerError: The file cannot be written.
        """
        return trace_steps(engine, path, modules=modules, forecast=forecast(self._case))

    def replan(self, trace: str | Path) -> Plan:
        """Plan again, with the seconds that a run of this plan took.

        Args:
            trace: A file that :meth:`trace` wrote.

        Returns:
            The best plan under the measured times, with the same options.

        Raises:
            TraceError: The file cannot be read, or is of another plan.
            InfeasibleError: No plan obeys the limits.
        """
        return replace(self, **replanned(self._case, trace))

    def reassigned(self, other: Plan) -> Plan:
        """Return this plan's prices with another plan's stages, to compare the two."""
        return replace(self, assignment=other.assignment)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Plan:
        """Read a plan and bind it to the model it was made for.

        Records and prices the model again (seconds), but solves nothing.

        Args:
            path: A file that :meth:`save` wrote.
            model: The model; weights may differ, structure may not.

        Raises:
            PlanMismatchError: The file is no plan, or the model is another one.
        """
        return cls(**load_plan(path, model))
