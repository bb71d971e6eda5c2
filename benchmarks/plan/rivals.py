"""Other ways to split a workload: DeepSpeed's, an expert's, and the raw program."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import pulp
from deepspeed.runtime.utils import partition_balanced

if TYPE_CHECKING:
    from benchmarks.plan.workloads import Workload

__all__ = ["Raw", "balanced", "raw_program"]


def balanced(workload: Workload) -> float:
    """Return the load of DeepSpeed's ``partition_balanced``, with times as weights.

    DeepSpeed splits a list: here the classes in depth-first topological order.
    """
    graph = nx.DiGraph(workload.order)
    graph.add_nodes_from(range(len(workload.problem.units)))
    merged = nx.condensation(graph)
    order = list(nx.dfs_postorder_nodes(merged))[::-1]
    units = workload.problem.units
    members = [merged.nodes[part]["members"] for part in order]
    times = [sum(units[u].forward_s for u in part) for part in members]
    bounds = partition_balanced(times, workload.file.devices)
    stage_of = [0] * len(units)
    for stage, (start, stop) in enumerate(itertools.pairwise(bounds)):
        for part in members[start:stop]:
            for unit in part:
                stage_of[unit] = stage
    return workload.load(workload.stage_of_nodes(stage_of))


@dataclass(frozen=True)
class Raw:
    """What the raw program reached."""

    objective: float
    bound: float
    proven: bool


def raw_program(workload: Workload, limit_s: float) -> Raw:
    """Solve the plain prefix program with HiGHS at gap 0, without windows.

    Args:
        workload: What is to be placed.
        limit_s: Seconds for HiGHS.
    """
    model, load = _raw_model(workload)
    model.solve(pulp.HiGHS(msg=False, gapRel=0.0, timeLimit=limit_s, threads=1))
    solved = model.sol_status in (
        pulp.LpSolutionOptimal,
        pulp.LpSolutionIntegerFeasible,
    )
    info = model.solverModel.getInfo()
    return Raw(
        objective=float(load.value()) if solved else float("inf"),
        bound=float(info.mip_dual_bound),
        proven=bool(model.sol_status == pulp.LpSolutionOptimal),
    )


def _raw_model(workload: Workload) -> tuple[pulp.LpProblem, pulp.LpVariable]:
    units, stages = workload.problem.units, workload.file.devices
    model = pulp.LpProblem("raw", pulp.LpMinimize)
    load = pulp.LpVariable("load", 0)
    model += load
    upto = [
        [pulp.LpVariable(f"y{u}_{s}", cat=pulp.LpBinary) for s in range(stages - 1)]
        for u in range(len(units))
    ]
    on = [
        [
            (upto[u][s] if s < stages - 1 else 1) - (upto[u][s - 1] if s else 0)
            for s in range(stages)
        ]
        for u in range(len(units))
    ]
    for row in upto:
        for earlier, later in itertools.pairwise(row):
            model += earlier <= later
    for before, after in workload.order:
        for s in range(stages - 1):
            model += upto[after][s] <= upto[before][s]
    for s in range(stages):
        spent = [units[u].forward_s * on[u][s] for u in range(len(units))]
        for index, (made, readers, cost) in enumerate(workload.tensors):
            moved = pulp.LpVariable(f"m{index}_{s}", 0, 1)
            spent.append(cost * moved)
            for reader in readers:
                model += moved >= on[made][s] - on[reader][s]
                model += moved >= on[reader][s] - on[made][s]
        model += pulp.lpSum(spent) <= load
        held = (units[u].static_bytes / 2**30 * on[u][s] for u in range(len(units)))
        model += pulp.lpSum(held) <= workload.file.memory / 2**30
        model += pulp.lpSum(on[u][s] for u in range(len(units))) >= 1
    return model, load
