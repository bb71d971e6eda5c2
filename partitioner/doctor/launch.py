"""How many processes and nodes a run has, as far as launcher and bus say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partitioner.doctor.case import Case

__all__ = ["local_processes", "several_nodes", "variable", "whole"]


def variable(case: Case, name: str) -> str | None:
    """Return a variable of the environment; None if it is not set or not asked for."""
    return case.machine.environment.get(name) if case.machine else None


def whole(text: str | None) -> int | None:
    """Read a whole number; None for anything else."""
    return int(text) if text and text.strip().isdigit() else None


def local_processes(case: Case) -> int | None:
    """Return the processes on this machine: the launcher's, else one for each GPU."""
    told = whole(variable(case, "LOCAL_WORLD_SIZE"))
    if told:
        return told
    gpus = case.machine.accelerators if case.machine else None
    return len(gpus) if gpus else None


def several_nodes(case: Case) -> bool:
    """Whether the run is known to have more than one node."""
    everywhere = whole(variable(case, "WORLD_SIZE")) or case.processes
    here = local_processes(case)
    if everywhere and here:
        return everywhere > here
    cluster = case.plan.get("cluster") if case.plan else None
    return bool(cluster) and int(cluster["nodes"]) > 1  # type: ignore[index]
