"""Pipelines of a plan, and what plans predict."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.speed.runner import EngineRunner
from benchmarks.speed.setting import QUIET, shared
from partitioner import Measurements, Plan, measure_model, partition
from partitioner.solve import score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from benchmarks.speed.setting import Setting

__all__ = ["Needs", "Planner", "first_units", "measured", "stage_needs"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a plan predicts of a stage and one micro-batch, messages left out."""

    device_s: float
    host_s: float


def stage_needs(plan: Plan) -> list[Needs]:
    """Return what each stage's device needs and what its host does.

    The slower of the two is the stage's time.
    """
    totals = [[0.0, 0.0] for _ in range(plan.problem.stages)]
    found = plan.assignment
    stages = zip(plan.problem.units, found.stage_of, found.recomputed, strict=True)
    for unit, stage, again in stages:
        device_s, host_s = unit.needs_s(again=again)
        totals[stage][0] += device_s
        totals[stage][1] += host_s
    return [Needs(device_s=device_s, host_s=host_s) for device_s, host_s in totals]


@dataclass(frozen=True)
class Planner:
    """Makes the plans of one setting, each once.

    Args:
        setting: The model and its data.
        folder: Where timings of the model's parts are kept.
        stages: What 1F1B has; DualPipeV has twice as many.
    """

    setting: Setting
    folder: Path
    stages: int

    def plan(
        self,
        *,
        compiled: bool,
        whole_layers: bool,
        schedule: str = "1f1b",
        cuda_graphs: bool = False,
    ) -> Plan:
        """Return the best plan of a kind, by prices that rank 0 measured."""
        return _plan(
            self,
            compiled=compiled,
            whole_layers=whole_layers,
            schedule=schedule,
            cuda_graphs=cuda_graphs,
        )

    def plan_at(
        self, parts: tuple[int, ...], *, compiled: bool, schedule: str = "1f1b"
    ) -> Plan:
        """Return the plan that cuts where a hand-written pipeline does.

        Args:
            parts: First hand-written layer of each stage, and their number.
            compiled: As it will run.
            schedule: ``"1f1b"``, or ``"dualpipev"`` with two stages for each rank.
        """
        found = self.plan(compiled=compiled, whole_layers=False, schedule=schedule)
        starts = self._starts(found)
        bounds = [starts[part] for part in parts[1:-1]]
        place = {node: i for i, node in enumerate(found.graph.graph.nodes)}
        stage_of = tuple(
            sum(min(place[node] for node in nodes) >= bound for bound in bounds)
            for nodes in found.units.nodes
        )
        plain = (False,) * len(stage_of)
        objective_s = score(found.problem, stage_of, plain).objective_s
        assignment = replace(
            found.assignment,
            stage_of=stage_of,
            recomputed=plain,
            objective_s=objective_s,
        )
        return replace(found, assignment=assignment)

    def parts_of(self, plan: Plan) -> tuple[int, ...]:
        """Return a whole-layer plan's cuts in hand-written layers.

        Each is the first layer that begins at or after the cut.
        """
        starts = self._starts(plan)
        place = {node: i for i, node in enumerate(plan.graph.graph.nodes)}
        stages = max(plan.assignment.stage_of) + 1
        firsts = [
            min(
                place[node]
                for unit, nodes in enumerate(plan.units.nodes)
                for node in nodes
                if plan.assignment.stage_of[unit] >= stage
            )
            for stage in range(1, stages)
        ]
        cuts = [0]
        for first in firsts:
            after = [i for i, start in enumerate(starts) if start >= first]
            cuts.append(max(cuts[-1] + 1, min(after, default=len(starts) - 1)))
        return (*cuts, len(starts))

    def paths_of(self, parts: Sequence[int]) -> list[str]:
        """Return the original module with which each stage but the first begins."""
        origins = _origins(self.setting)
        return [origins[part][0] for part in parts[1:-1]]

    def run(
        self,
        plan: Plan,
        *,
        compiled: bool = False,
        on_device: bool = False,
        zero_bubble: bool = False,
        config: Mapping[str, Any] = QUIET,
    ) -> EngineRunner:
        """Build a plan's pipeline over all ranks.

        Args:
            plan: What to run.
            compiled: Stages and loss run under ``torch.compile``.
            on_device: The batches are on the device; else in pageable memory.
            zero_bubble: As for ``Plan.initialize``.
            config: Likewise.
        """
        workload = self.setting.workload
        loss: Any = workload.model_loss
        if compiled:
            inner = torch.compile(workload.loss)
            loss = replace(workload, loss=inner).model_loss
        options = {"compile": {"dynamic": False}} if compiled else {}
        engine, *_ = plan.initialize(
            loss,
            weights=str(self.setting.weights),
            config={"optimizer": self.setting.optimizer, **config},
            module=options,
            zero_bubble=zero_bubble,
        )
        data = self.setting.data_on_device if on_device else self.setting.data
        return EngineRunner(engine, itertools.cycle(data), first_units(plan))

    def _starts(self, plan: Plan) -> list[int]:
        """Return the position of the first node of each hand-written layer."""
        place = {node: i for i, node in enumerate(plan.graph.graph.nodes)}
        firsts: dict[str, int] = {}
        for span in plan.graph.spans:
            firsts[span.path] = min(place[node] for node in span.nodes)
        for node, position in place.items():
            if node.op == "call_module":
                firsts.setdefault(str(node.target), position)
        return [
            min(firsts[path] for path in origins) for origins in _origins(self.setting)
        ]


def first_units(plan: Plan) -> list[str]:
    """Return the name of the first unit of every stage but the first."""
    stage_of = plan.assignment.stage_of
    return [
        plan.problem.units[stage_of.index(stage)].name
        for stage in range(1, max(stage_of) + 1)
    ]


@cache
def _plan(
    planner: Planner,
    *,
    compiled: bool,
    whole_layers: bool,
    schedule: str,
    cuda_graphs: bool,
) -> Plan:
    setting = planner.setting
    workload = setting.workload
    inputs, labels = setting.data[0]
    with torch.device("meta"):
        model = workload.model()
    timings = measured(setting, planner.folder, model, compiled=compiled)
    layers = _origins(setting) if whole_layers else []
    found = partition(
        model,
        planner.stages,
        example_inputs=inputs,
        micro_batches=setting.micro_batches,
        dtype=setting.dtype,
        schedule=schedule,
        cuda_graphs=cuda_graphs,
        no_cut_inside=[path for paths in layers for path in paths],
        keep_together=[paths for paths in layers if len(paths) > 1],
        measurements=timings,
        loss_fn=workload.model_loss,
        example_labels=labels,
        gap=0.001,
    )
    # Several answers may be as good: hand-written stages must be those of one.
    return replace(found, assignment=shared(lambda: found.assignment))


def measured(
    setting: Setting, folder: Path, model: nn.Module, *, compiled: bool
) -> Measurements:
    """Return on all ranks what rank 0 times on its device, or has timed before.

    Args:
        setting: The model's data.
        folder: Where the timings are kept.
        model: The original, on ``meta``.
        compiled: As for ``measure_model``.
    """
    kind = "compiled" if compiled else "eager"
    if setting.device.type != "cuda":
        kind += f"-{setting.device.type}"  # a rehearsal's are of no use elsewhere
    file = folder / f"prices-{setting.workload.name}-{kind}.json"

    def timed() -> Measurements:
        before = Measurements.load(file) if file.exists() else None
        if before is not None and not before.failed:
            return before
        inputs, labels = setting.data[0]
        found = measure_model(
            model,
            example_inputs=inputs,
            loss_fn=setting.workload.model_loss,
            example_labels=labels,
            dtype=setting.dtype,
            device=setting.device.type,
            compiled=compiled,
        )
        folder.mkdir(parents=True, exist_ok=True)
        found.save(file)
        return found

    found: Measurements = shared(timed)
    return found


def _origins(setting: Setting) -> Sequence[Sequence[str]]:
    """Return the original paths of what each hand-written layer holds."""
    with torch.device("meta"):
        layers = [spec.build() for spec in setting.workload.layers()]
    return [list(layer.origins.values()) for layer in layers]
