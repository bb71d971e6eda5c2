"""Traces of runs that took exactly what a simulation says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from partitioner.runtime.timeline.events import trace_document
from partitioner.simulate import Simulation

__all__ = ["document", "written"]

_MESSAGES = {"activation": "receive activation", "gradient": "receive gradient"}


def document(
    simulation: Simulation,
    *,
    stages: int,
    steps: int = 1,
    recompute_s: Mapping[int, float] | None = None,
    modules: Sequence[Mapping[str, Any]] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the trace of steps that each took what was simulated.

    Args:
        simulation: One step.
        stages: Of the plan.
        steps: How many follow each other.
        recompute_s: Seconds at the beginning of every backward, by stage.
        modules: Module calls: ``stage``, ``module`` and ``took_s`` in every forward.
        about: Further facts.
    """
    ranks: list[dict[str, Any]] = [
        {"stage": rank, "replica": 0, "intervals": []}
        for rank in range(len(simulation.ranks))
    ]
    for step in range(steps):
        ahead_s = 100.0 + step * (simulation.step_s + 1.0)
        for event in simulation.events:
            kind = _MESSAGES.get(event.kind, event.kind)
            mine: dict[str, Any] = {
                "kind": kind,
                "step": step,
                "stage": event.chunk,
                "micro_batch": event.micro_batch,
                "start_s": ahead_s + event.start_s,
                "end_s": ahead_s + event.end_s,
                "module": "",
                "peers": [event.chunk] if event.kind in _MESSAGES else [],
            }
            found = ranks[event.rank]["intervals"]
            found.append(mine)
            if kind == "backward" and recompute_s:
                again_s = recompute_s.get(event.chunk, 0.0)
                end_s = mine["start_s"] + again_s
                found.append(mine | {"kind": "recompute", "end_s": end_s})
            for call in modules:
                if kind == "forward" and call["stage"] == event.chunk:
                    end_s = mine["start_s"] + call["took_s"]
                    found.append(
                        mine
                        | {"kind": "module", "module": call["module"], "end_s": end_s}
                    )
    facts = {
        "ranks": len(ranks),
        "stages": stages,
        "micro_batches": simulation.micro_batches,
        "device": "cpu",
        **(about or {}),
    }
    return trace_document(ranks, about=facts)


def written(path: Path, content: Any) -> Path:
    """Write a document and return where."""
    path.write_text(json.dumps(content))
    return path
