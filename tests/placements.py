"""Random legal placements: cuts anywhere the rules allow, not where a solver would."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from partitioner.cost import units
from partitioner.emit import Placement
from partitioner.graph import ModelGraph, info


def random_placement(
    graph: ModelGraph, stages: int, rng: random.Random, *, checkpoint: bool = False
) -> Placement:
    """Cut the units' topological order at random places.

    Every stage gets at least one trainable unit, as DeepSpeed demands.
    """
    found = units(SimpleNamespace(graph=graph))  # type: ignore[arg-type]
    computing = [
        index
        for index, nodes in enumerate(found.nodes)
        if any(info(node).kind == "compute" for node in nodes)
    ]
    trainable = [_trains(graph, found.nodes[index]) for index in computing]
    first = 1 + max(
        (
            place
            for place, index in enumerate(computing)
            if any(info(node).kind == "input" for node in found.nodes[index])
        ),
        default=0,
    )
    while True:
        cuts = sorted(rng.sample(range(first, len(computing)), stages - 1))
        bounds = [0, *cuts, len(computing)]
        if all(any(trainable[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)):
            break
    stage_of = {}
    for place, index in enumerate(computing):
        for node in found.nodes[index]:
            if info(node).kind == "compute":
                stage_of[node] = sum(place >= cut for cut in cuts)
    block_of = _blocks(graph, rng) if checkpoint else {}
    return Placement(stages=stages, stage_of=stage_of, block_of=block_of)


def _trains(graph: ModelGraph, nodes: Any) -> bool:
    for node in nodes:
        if node.op == "call_module":
            leaf = graph.model.get_submodule(str(node.target))
            if any(parameter.requires_grad for parameter in leaf.parameters()):
                return True
        names = dict(graph.model.named_parameters(remove_duplicate=False))
        for source in node.all_input_nodes:
            if source.op == "get_attr" and str(source.target) in names:
                return True
    return False


def _blocks(graph: ModelGraph, rng: random.Random) -> dict[Any, str]:
    """Recompute about half of the recorded module calls below the root's children."""
    block_of = {}
    for span in graph.spans:
        if span.path.count(".") == 2 and rng.random() < 0.5:
            for node in span.nodes:
                block_of.setdefault(node, span.id)
    return block_of
