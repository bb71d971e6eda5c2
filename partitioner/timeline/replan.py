"""What stages and modules really took → what every part of the model costs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from partitioner.cost import Cost, problem_for, with_given
from partitioner.cost.given import GivenCost
from partitioner.errors import TraceError
from partitioner.graph import info
from partitioner.solve import solve
from partitioner.timeline.trace_file import Trace
from partitioner.timeline.usage import usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import fx

    from partitioner.assess import Case
    from partitioner.timeline.usage import RunUse, StageUse

__all__ = ["measured_costs", "replanned", "without_measured"]

_RUNS = frozenset({"compute", "late", "output"})
"""What takes time; the loss is counted at the output."""
_HINT = "give the plan that ran when the trace was recorded"


def replanned(case: Case, trace: str | Path) -> dict[str, Any]:
    """Solve a plan's problem again, with the seconds that a run of it took.

    Args:
        case: The plan that ran.
        trace: The file that was recorded.

    Returns:
        The fields of the plan that differ.

    Raises:
        TraceError: The file cannot be read, or is of another plan.
        InfeasibleError: No plan obeys the limits.
    """
    found = usage(Trace.load(trace))
    given = without_measured(case.costed.given)
    costed = with_given(case.costed, [*given, *measured_costs(case, found)])
    problem, units = problem_for(costed, case.options)
    assignment = solve(
        problem,
        solver=case.options.solver,
        gap=case.options.gap,
        time_limit_s=case.options.time_limit_s,
    )
    return {
        "costed": costed,
        "problem": problem,
        "units": units,
        "assignment": assignment,
    }


def measured_costs(case: Case, found: RunUse) -> list[GivenCost]:
    """Return for every unit of a plan the seconds that a run of it took.

    What a module took in the forward is shared by its parts, in proportion to their
    prices; so is what a stage took besides its modules. A stage's backward is shared
    in proportion to the prices too, each as wrong as its forward's was.

    Args:
        case: The plan that ran.
        found: What was measured of it.

    Raises:
        TraceError: Another model or another number of stages ran.
    """
    _check(case, found)
    units = [[n for n in nodes if info(n).kind in _RUNS] for nodes in case.units.nodes]
    by_stage: dict[int, list[fx.Node]] = defaultdict(list)
    for stage, unit in zip(case.assignment.stage_of, units, strict=True):
        by_stage[stage] += unit
    costs = case.costed.costs
    forward_s: dict[fx.Node, float] = {}
    backward_s: dict[fx.Node, float] = {}
    for use in found.stages:
        nodes = by_stage[use.stage]
        priced_s = {node: costs[node].forward_s for node in nodes}
        forward_s |= _forward(nodes, priced_s, use)
        wrong = {
            node: forward_s[node] / priced_s[node] if priced_s[node] else 1.0
            for node in nodes
        }
        weights = {node: costs[node].backward_s * wrong[node] for node in nodes}
        backward_s |= _scaled(weights, use.backward_s)
    return [
        GivenCost(
            pattern=f"measured: {unit.name}",
            modules=(),
            operators=(),
            nodes=tuple(info(node).id for node in nodes),
            cost=Cost(
                forward_s=sum(forward_s[node] for node in nodes),
                backward_s=sum(backward_s[node] for node in nodes),
            ),
        )
        for unit, nodes in zip(case.problem.units, units, strict=True)
        if nodes
    ]


def _check(case: Case, found: RunUse) -> None:
    mine = case.costed.graph.fingerprint
    if found.fingerprint and found.fingerprint != mine:
        raise TraceError(
            f"the trace is of another model: {found.fingerprint[:12]}, and the plan's "
            f"is {mine[:12]}",
            hint=_HINT,
        )
    stages = case.problem.stages
    if len(found.stages) != stages:
        message = f"the trace has {len(found.stages)} stages, the plan {stages}"
        raise TraceError(message, hint=_HINT)


def _forward(
    nodes: Sequence[fx.Node], priced_s: Mapping[fx.Node, float], use: StageUse
) -> dict[fx.Node, float]:
    """Return what each node of a stage took in the forward."""
    found: dict[fx.Node, float] = {}
    for path, took_s in use.modules_s.items():
        inside = [n for n in nodes if n not in found and _is_in(n, path)]
        found |= _scaled({node: priced_s[node] for node in inside}, took_s)
    rest = {node: priced_s[node] for node in nodes if node not in found}
    rest_s = max(0.0, use.forward_s - sum(found.values()))
    if sum(rest.values()) > 0:
        return found | _scaled(rest, rest_s)
    # The loss alone, or what lies between modules: it counts where the modules are.
    return _scaled(found | rest, use.forward_s)


def _is_in(node: fx.Node, path: str) -> bool:
    module = info(node).module
    return module == path or module.startswith(f"{path}.")


def _scaled(weights: Mapping[fx.Node, float], total_s: float) -> dict[fx.Node, float]:
    """Divide a time in proportion; equally where nothing has a weight."""
    whole = sum(weights.values())
    if whole > 0:
        return {node: total_s * weight / whole for node, weight in weights.items()}
    return dict.fromkeys(weights, total_s / max(1, len(weights)))


def without_measured(given: Iterable[GivenCost]) -> list[GivenCost]:
    """Leave out what an earlier trace said."""
    return [entry for entry in given if not entry.nodes]
