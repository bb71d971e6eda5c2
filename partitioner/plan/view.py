"""What a plan says of itself, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from partitioner.emit.gradients import GradientFlow
from partitioner.graph import InputSpec, info
from partitioner.report.units import format_bytes
from partitioner.solve import added_bytes
from partitioner.version import __version__

if TYPE_CHECKING:
    from torch import fx

    from partitioner.costed import CostedGraph, Unpriced
    from partitioner.plan.plan import Plan
    from partitioner.plan.stages import StagePlan

__all__ = ["plan_dict"]

SCHEMA_VERSION = 1


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data, ``schema_version`` 1."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "fx-partitioner plan",
        "provenance": _provenance(plan),
        "options": {
            **plan.options.to_dict(),
            "device": plan.costed.profile.name,
        },
        "constraints": _lists(asdict(plan.graph.constraints)),
        "costs": [entry.to_dict() for entry in plan.costed.given],
        "loss": asdict(plan.costed.loss) if plan.costed.loss else None,
        "casts": plan.graph.casts,
        "inputs": [_input(spec) for spec in plan.graph.inputs],
        "objective_s": plan.objective_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "bubble_share": plan.score.bubble_share,
        "simulation": plan.simulation.to_dict(),
        "bottleneck_stage": _slowest_stage(plan),
        "stages": [_stage(plan, stage) for stage in plan.stages],
        "cluster": _cluster(plan),
        "boundaries": _boundaries(plan),
        "ties": [
            {"parameter": tie.name, "stages": list(tie.stages)}
            for tie in plan.layers.ties
        ],
        "guards": [_lists(asdict(guard)) for guard in plan.graph.guards],
        "assumptions": list(plan.graph.assumptions),
        "warnings": list(plan.assignment.warnings),
        "unpriced": [_unpriced(item) for item in plan.costed.unpriced],
        **_decisions(plan),
    }


def _unpriced(item: Unpriced) -> dict[str, Any]:
    where = f"{item.module or 'the root'} ({item.source})"
    return {"operator": item.operator, "count": item.count, "where": where}


def _decisions(plan: Plan) -> dict[str, Any]:
    """Return the stage of every unit, and the units that are recomputed."""
    names = [unit.name for unit in plan.problem.units]
    stage_of, recomputed = plan.assignment.stage_of, plan.assignment.recomputed
    return {
        "units": dict(zip(names, stage_of, strict=True)),
        "recomputed_units": [
            name for name, again in zip(names, recomputed, strict=True) if again
        ],
    }


def _lists(value: Any) -> Any:
    """Return tuples as lists, as they come back from JSON."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_lists(item) for item in value]
    return value


def _slowest_stage(plan: Plan) -> int:
    """Return the stage that takes longest on the rank that does."""
    stages = plan.problem.stages_of(plan.score.bottleneck)
    return max(stages, key=lambda stage: plan.score.stages[stage].time_s)


def _provenance(plan: Plan) -> dict[str, Any]:
    kind = type(plan.graph.model)
    return {
        "fx_partitioner": __version__,
        "torch": torch.__version__,
        "model_class": f"{kind.__module__}.{kind.__qualname__}",
        "fingerprint": plan.graph.fingerprint,
        "solver": plan.assignment.solver,
        "proof": plan.assignment.proof,
        "solve_s": plan.assignment.solve_s,
        "profile": plan.costed.profile.name,
        "prices": _prices(plan.costed) + _paced_by_host(plan) + _not_in_prices(plan),
        "dtype": str(plan.graph.dtype).removeprefix("torch."),
    }


def _prices(costed: CostedGraph) -> str:
    """Say in words where the seconds come from."""
    if costed.measurements is None:
        return f"{costed.profile.name}'s profile"
    share = f"{costed.measured_share:.0%} of the time"
    found = f"measured on {costed.measurements.source}: {share}"
    if costed.measurements.failed:
        found += f"; {costed.measurements.not_timed}: by the device's profile"
    return found


def _paced_by_host(plan: Plan) -> str:
    """Name the stages whose layers the host cannot start as fast as they run."""
    rows = enumerate(plan.score.stages)
    late = [str(stage) for stage, row in rows if row.host_bound]
    if not late:
        return ""
    stages = f"stage{'s' if len(late) > 1 else ''} {', '.join(late)}"
    measured = plan.costed.measurements
    compiled = measured is not None and measured.compiled
    others = "cuda_graphs=True" if compiled else "compile=True or cuda_graphs=True"
    helps = f"larger micro-batches help, or {others}"
    return f"; the host sets the pace of {stages}: {helps}"


def _not_in_prices(plan: Plan) -> str:
    if plan.options.cuda_graphs:
        more = format_bytes(added_bytes(plan.problem, plan.score))
        return f"; CUDA graphs: no time of the host, up to {more} more on a stage"
    if plan.costed.profile.kind == "gpu" and plan.problem.schedule == "eager-1f1b":
        return "; not counted: receives that wait (4 to 7 % of a pass on two H200)"
    return ""


def _input(spec: InputSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": str(spec.dtype).removeprefix("torch."),
        "free": [dim for dim, symbol in enumerate(spec.symbols) if symbol >= 0],
    }


_MEMORY = (
    "static_bytes",
    "saved_bytes",
    "received_bytes",
    "sent_kept_bytes",
    "wire_bytes",
    "peak_bytes",
    "recompute_peak_bytes",
    "reserved_bytes",
    "transient_bytes",
    "freed_bytes",
    "tail_transient_bytes",
    "step_bytes",
)
"""What a stage's score says of its memory."""


def _stage(plan: Plan, stage: StagePlan) -> dict[str, Any]:
    score = stage.score
    return {
        "index": stage.index,
        "modules": list(stage.modules),
        "parameters": stage.parameters,
        "forward_flops": stage.forward_flops,
        "backward_flops": stage.backward_flops,
        "forward_s": score.forward_s,
        "backward_s": score.backward_s,
        "recompute_s": score.recompute_s,
        "communication_s": score.communication_s,
        "time_s": score.time_s,
        "memory_bytes": score.memory_bytes,
        "memory": {
            **asdict(stage.held),
            **{name: getattr(score, name) for name in _MEMORY},
        },
        "memory_limit_bytes": plan.problem.limits[plan.problem.rank_of(stage.index)],
        "sent_bytes": score.sent_bytes,
        "checkpointed": list(stage.checkpointed),
    }


def _cluster(plan: Plan) -> dict[str, Any] | None:
    """Say where the stages stand; None: on one node, as far as is known."""
    cluster, problem = plan.options.cluster, plan.problem
    if cluster is None:
        return None
    return {
        "nodes": cluster.nodes(problem.ranks),
        "far_boundaries": [s for s, far in enumerate(problem.far) if far],
    }


def _boundaries(plan: Plan) -> list[dict[str, Any]]:
    flow, stage_of = GradientFlow(plan.graph), plan.placement.stage_of
    return [
        {
            "after_stage": stage,
            "between_nodes": plan.problem.is_far(stage + 1),
            "values": [
                _value(node, differentiable=flow.comes_back(node, stage, stage_of))
                for node in values
                if info(node).outputs
            ],
        }
        for stage, values in enumerate(plan.layers.boundaries)
    ]


def _value(node: fx.Node, *, differentiable: bool) -> dict[str, Any]:
    facts = info(node)
    meta = facts.outputs[0]
    return {
        "name": node.name,
        "unit": facts.id,
        "shape": list(meta.shape),
        "dtype": str(meta.dtype).removeprefix("torch."),
        "bytes": meta.nbytes,
        "differentiable": differentiable,
        "source": facts.source,
    }
