"""Out of memory: what fills the fullest stage, and what helps, cheapest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partitioner.cost.memory import OPTIMIZER_STATES
from partitioner.doctor.finding import Rule, Severity, Symptom
from partitioner.report.units import format_bytes, format_share
from partitioner.runtime.pipeline_options import version_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partitioner.doctor.case import Case

__all__ = ["RULES", "allocator_variable"]

_TIGHT = 0.9
"""Share of the limit above which fragments and scratch can be too much."""

_FULL_BYTES = 4
_NEW_ALLOCATOR_NAME = (2, 9)

_PARTS = {
    "static_bytes": "parameters, gradients and optimizer",
    "saved_bytes": "activations in flight",
    "received_bytes": "received tensors",
    "sent_kept_bytes": "sent tensors",
    "wire_bytes": "wire buffers",
    "peak_bytes": "the worst moment of a backward",
}
_WITH_BATCH = tuple(name for name in _PARTS if name != "static_bytes")


def allocator_variable(version: str = torch.__version__) -> str:
    """Return the name of the variable that sets torch's allocator."""
    new = version_numbers(version)[:2] >= _NEW_ALLOCATOR_NAME
    return "PYTORCH_ALLOC_CONF" if new else "PYTORCH_CUDA_ALLOC_CONF"


def _memory(case: Case) -> Iterator[Symptom]:
    if not case.plan:
        return
    stage = max(case.plan["stages"], key=_fullness)
    limit = stage["memory_limit_bytes"]
    advice = "; ".join(
        f"{place}. {text}" for place, text in enumerate(_advice(case, stage), 1)
    )
    of = f" of {format_bytes(limit)}" if limit else ", no limit given"
    yield Symptom(
        where=f"plan: stage {stage['index']}",
        why=f"the fullest stage needs {format_bytes(stage['memory_bytes'])}{of}: "
        f"{_breakdown(stage['memory'])}",
        change=f"if it runs out of memory, cheapest first: {advice}",
        severity=_severity(stage),
    )


def _fullness(stage: Mapping[str, Any]) -> float:
    return float(stage["memory_bytes"]) / (stage["memory_limit_bytes"] or 1)


def _severity(stage: Mapping[str, Any]) -> Severity:
    if not stage["memory_limit_bytes"] or _fullness(stage) <= _TIGHT:
        return "info"
    return "error" if _fullness(stage) > 1 else "warning"


def _breakdown(memory: Mapping[str, int]) -> str:
    largest = sorted(_PARTS, key=lambda name: -memory[name])
    parts = [f"{format_bytes(memory[n])} {_PARTS[n]}" for n in largest if memory[n] > 0]
    return ", ".join(parts)


def _advice(case: Case, stage: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to do, what costs least first."""
    plan, memory = case.plan or {}, stage["memory"]
    variable = f"{allocator_variable()}=expandable_segments:True"
    if variable.partition("=")[2] not in _allocator(case):
        yield f"{variable} (costs nothing; the figures here know no fragments)"
    states, replicas = _states_bytes(case, stage), _replicas(case)
    if replicas > 1 and case.zero_stage == 0:
        freed = states - states // replicas
        yield f"ZeRO-1 over {replicas} replicas: up to {format_bytes(freed)} less"
    shape = plan["inputs"][0]["shape"]
    if shape and shape[0] > 1:
        half = sum(memory[name] for name in _WITH_BATCH) // 2
        micro_batches = 2 * plan["options"]["micro_batches"]
        yield (
            f"micro-batches of half the size, {micro_batches} of them: about "
            f"{format_bytes(half)} less (the same batch, smaller kernels)"
        )
    if memory["saved_bytes"] and plan["options"]["checkpointing"] != "all":
        share = stage["forward_s"] / stage["time_s"] if stage["time_s"] else 0.0
        yield (
            'partition(…, checkpointing="all"): up to '
            f"{format_bytes(memory['saved_bytes'])} less, the stage up to "
            f"{format_share(share)} slower"
        )
    if not case.section("zero_optimization", "offload_optimizer"):
        yield (
            f"ZeRO-1 with offload_optimizer to the CPU: up to {format_bytes(states)} "
            "less, gradients and weights cross the bus in every step"
        )
    yield f"{plan['options']['stages'] + 1} stages (more devices, a larger bubble)"


def _allocator(case: Case) -> str:
    environment = case.machine.environment if case.machine else {}
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return ",".join(environment.get(name, "") for name in names)


def _replicas(case: Case) -> int:
    if case.replicas:
        return case.replicas
    cluster = case.plan["options"].get("cluster") if case.plan else None
    return int(cluster["replicas"]) if cluster else 1


def _states_bytes(case: Case, stage: Mapping[str, Any]) -> int:
    """Return what the optimizer keeps, at most: frozen parameters are counted too."""
    plan = case.plan or {}
    name = str(plan["options"]["optimizer"]).lower().replace("_", "-")
    master = plan["provenance"]["dtype"] in ("float16", "bfloat16")
    copies = OPTIMIZER_STATES[name] + int(master)
    held = stage["parameters"] * _FULL_BYTES * copies
    return int(min(held, stage["memory"]["static_bytes"]))


RULES = (Rule(code="memory", severity="info", look=_memory),)
