"""Random legal placements: cuts anywhere the rules allow, not where a solver would."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from partitioner import Plan
from partitioner.cost import Units, units
from partitioner.emit import Placement
from partitioner.graph import ModelGraph, info
from partitioner.solve import Assignment

MOST_TRIES = 10_000


def random_placement(
    graph: ModelGraph, stages: int, rng: random.Random, *, checkpoint: bool = False
) -> Placement:
    """Cut the units' topological order at random places.

    Every stage gets at least one unit with a parameter, trained or frozen.
    """
    found = units(SimpleNamespace(graph=graph))  # type: ignore[arg-type]
    stage_of_unit = _random_stages(graph, found, stages, rng)
    stage_of = {
        node: stage
        for nodes, stage in zip(found.nodes, stage_of_unit, strict=True)
        for node in nodes
        if info(node).kind == "compute"
    }
    block_of = _blocks(graph, rng) if checkpoint else {}
    return Placement(stages=stages, stage_of=stage_of, block_of=block_of)


def random_assignment(plan: Plan, rng: random.Random) -> Assignment:
    """Cut a plan at random places; what is recomputed stays as it is planned."""
    stages = plan.options.stages
    stage_of = tuple(_random_stages(plan.graph, plan.units, stages, rng))
    return replace(plan.assignment, stage_of=stage_of)


def assignment_through(plan: Plan, pattern: str, rng: random.Random) -> Assignment:
    """Cut a plan inside a module whose path matches, and elsewhere at random.

    The pattern "" is glue: operations of modules that hold the repeated layers.
    """
    stages = plan.options.stages
    stage_of = tuple(_random_stages(plan.graph, plan.units, stages, rng, pattern))
    return replace(plan.assignment, stage_of=stage_of)


def _inside(found: Units, computing: list[int], pattern: str) -> list[int]:
    """Return the places between two units of one module call that matches."""
    owners = []
    for index in computing:
        node = next(n for n in found.nodes[index] if info(n).kind == "compute")
        # A leaf's own call is an operation of the module around it.
        path = info(node).module
        owners.append(path.rpartition(".")[0] if node.op == "call_module" else path)
    return [
        place
        for place in range(1, len(computing))
        if owners[place - 1] == owners[place] and _matches(owners[place], pattern)
    ]


def _matches(path: str, pattern: str) -> bool:
    if pattern:
        return re.search(pattern, path) is not None
    return not any(part.isdigit() for part in path.split("."))


def _random_stages(
    graph: ModelGraph,
    found: Units,
    stages: int,
    rng: random.Random,
    pattern: str | None = None,
) -> list[int]:
    """Return the stage of every unit: inputs first, the loss part last."""
    computing = [
        index
        for index, nodes in enumerate(found.nodes)
        if any(info(node).kind == "compute" for node in nodes)
    ]
    weighted = [_has_parameters(graph, found.nodes[index]) for index in computing]
    first = 1 + max(
        (
            place
            for place, index in enumerate(computing)
            if any(info(node).kind == "input" for node in found.nodes[index])
        ),
        default=0,
    )
    through = None if pattern is None else _inside(found, computing, pattern)
    for _ in range(MOST_TRIES):
        cuts = sorted(rng.sample(range(first, len(computing)), stages - 1))
        if through is not None and not set(cuts) & set(through):
            cuts[rng.randrange(len(cuts))] = rng.choice(through)
            cuts.sort()
        if cuts[0] < first or len(set(cuts)) < len(cuts):
            continue
        bounds = itertools.pairwise([0, *cuts, len(computing)])
        if all(any(weighted[start:end]) for start, end in bounds):
            break
    else:
        message = f"no legal cut through {pattern!r} was found"
        raise AssertionError(message)
    stage_of = [
        0 if all(info(node).kind == "input" for node in nodes) else stages - 1
        for nodes in found.nodes
    ]
    for place, index in enumerate(computing):
        stage_of[index] = sum(place >= cut for cut in cuts)
    return stage_of


def _has_parameters(graph: ModelGraph, nodes: Any) -> bool:
    names = dict(graph.model.named_parameters(remove_duplicate=False))
    for node in nodes:
        if node.op == "call_module":
            leaf = graph.model.get_submodule(str(node.target))
            if next(leaf.parameters(), None) is not None:
                return True
        for source in node.all_input_nodes:
            if source.op == "get_attr" and str(source.target) in names:
                return True
    return False


def _blocks(graph: ModelGraph, rng: random.Random) -> dict[Any, str]:
    """Recompute about half of the recorded module calls below the root's children."""
    block_of: dict[Any, str] = {}
    for span in graph.spans:
        if span.path.count(".") == 2 and rng.random() < 0.5:
            for node in span.nodes:
                block_of.setdefault(node, span.id)
    return block_of
