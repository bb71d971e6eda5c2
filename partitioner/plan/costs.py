"""What the parts of a planned model cost: by module, by operator, or by node."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal, get_args

from partitioner.cost.given import operator_name
from partitioner.cost.weights import Weight, read_weights
from partitioner.costed import NodeCost
from partitioner.errors import OptionError
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import fx

    from partitioner.costed import CostedGraph
    from partitioner.plan.plan import Plan

__all__ = ["DEPTH", "By", "Part", "Sort", "breakdown", "note_prices", "part_row"]

_log = logging.getLogger(__name__)

By = Literal["module", "operator", "node"]
Sort = Literal["forward", "backward", "memory", "flops", "params"]

DEPTH = 2
"""Levels of modules that are shown if nothing else is asked for."""

_SORT_KEYS = {
    "forward": lambda row: row["forward_s"],
    "backward": lambda row: row["backward_s"],
    "memory": lambda row: row["saved_bytes"],
    "flops": lambda row: row["forward_flops"] + row["backward_flops"],
    "params": lambda row: row["parameters"],
}


@dataclass(slots=True)
class Part:
    """Nodes that make one row."""

    name: str
    kind: str
    """Class of a module; operator of a node."""
    nodes: list[fx.Node] = field(default_factory=list)
    source: str = ""


def breakdown(
    plan: Plan, by: By, *, depth: int = DEPTH, sort: Sort | None = None
) -> dict[str, Any]:
    """Return what each part of a plan's model costs for one micro-batch.

    Args:
        plan: The plan.
        by: ``"module"``: every module down to ``depth``, with all that is inside it;
            ``"operator"``: all calls of one function or class of layers together;
            ``"node"``: every recorded operation that costs anything.
        depth: Levels of modules; a part of a module that is no module of its own
            counts at the module.
        sort: What to sort by, the largest first; None: in the order of the program.

    Returns:
        Plain data: ``by``, ``sort``, the ``total`` and one entry of ``rows`` for each
        part, with seconds, FLOPs, parameters, and bytes saved for backward.

    Raises:
        OptionError: ``by`` or ``sort`` is no choice, or ``depth`` is below 1.
    """
    _check(by, depth, sort)
    parts = {"module": _modules, "operator": _operators, "node": _nodes}[by]
    weights = read_weights(plan.graph)
    last = plan.placement.stages - 1
    late = {n: last for n in plan.graph.graph.nodes if info(n).kind == "late"}
    stage_of = {**plan.placement.stage_of, **late}
    rows = [part_row(plan, part, weights, stage_of) for part in parts(plan, depth)]
    if sort is not None:
        rows.sort(key=_SORT_KEYS[sort], reverse=True)
    everything = Part("", "", list(_costly(plan)))
    total = part_row(plan, everything, weights, stage_of)
    return {"by": by, "sort": sort, "total": total, "rows": rows}


def _check(by: Any, depth: Any, sort: Any) -> None:
    for name, value, choices in (
        ("by", by, get_args(By)),
        ("sort", sort, (None, *get_args(Sort))),
    ):
        if value not in choices:
            shown = ", ".join(map(str, choices))
            raise OptionError(f"{name} is {value!r}", hint=f"choose from {shown}")
    if type(depth) is not int or depth < 1:
        hint = "give a whole number of at least 1"
        raise OptionError(f"depth is {depth!r}", hint=hint)


def _modules(plan: Plan, depth: int) -> Iterable[Part]:
    """Return a part for every module called, outer ones before what is inside them."""
    graph = plan.graph
    inside: dict[str, list[fx.Node]] = defaultdict(list)
    for node in _costly(plan):
        names = info(node).module.split(".") if info(node).module else []
        for level in range(1, min(depth, len(names)) + 1):
            inside[".".join(names[:level])].append(node)
        if not names:
            inside[""].append(node)
    for path, module in graph.model.named_modules():
        if path in inside:
            name = path or "(root's own code)"
            yield Part(name, type(module).__name__, inside[path])


def _operators(plan: Plan, _depth: int) -> Iterable[Part]:
    parts: dict[str, Part] = {}
    for node in _costly(plan):
        name = operator_name(plan.graph, node)
        parts.setdefault(name, Part(name, "")).nodes.append(node)
    return parts.values()


def _nodes(plan: Plan, _depth: int) -> Iterator[Part]:
    for node in _costly(plan):
        facts = info(node)
        yield Part(facts.id, operator_name(plan.graph, node), [node], facts.source)


def _costly(plan: Plan) -> Iterator[fx.Node]:
    for node, cost in plan.costed.costs.items():
        time_s = cost.forward_s + cost.backward_s
        if time_s or cost.saved_bytes or cost.parameter_bytes:
            yield node


def part_row(
    plan: Plan,
    part: Part,
    weights: Any,
    stage_of: dict[fx.Node, int],
) -> dict[str, Any]:
    """Return what one part of a plan's model costs, as a row of a breakdown.

    Args:
        plan: The plan.
        part: The nodes.
        weights: What each node reads.
        stage_of: Stage of every node that has one.
    """
    cost = reduce(add, (plan.costed.costs[node] for node in part.nodes), NodeCost())
    read: set[Weight] = {weight for node in part.nodes for weight in weights[node]}
    return {
        "name": part.name,
        "kind": part.kind,
        "calls": len(part.nodes),
        "source": part.source,
        "stages": sorted({stage_of[node] for node in part.nodes if node in stage_of}),
        "parameters": sum(weight.numel for weight in read if weight.is_parameter),
        "forward_flops": cost.forward_flops,
        "backward_flops": cost.backward_flops,
        "forward_s": cost.forward_s,
        "backward_s": cost.backward_s,
        "saved_bytes": cost.saved_bytes,
    }


def note_prices(costed: CostedGraph, *, compiled: bool) -> None:
    """Say, on rank 0, if the stages will not run as they were priced."""
    measured = costed.measurements
    as_compiled = measured is not None and measured.compiled
    if compiled == as_compiled or os.environ.get("RANK", "0") != "0":
        return
    if compiled:
        _log.warning(
            "the stages will be compiled, but were priced uncompiled: the best cut may "
            "be another one; partition(…, measurements=measure_model(…, compiled=True))"
        )
    else:
        _log.warning(
            "the stages were priced compiled, but will run uncompiled: "
            "plan.pipeline_module(…, compile=True)"
        )
