"""Modules that run as a whole: which, why, and their share of the work."""

from __future__ import annotations

import re
from collections.abc import Iterable

from partitioner.costed import CostedGraph
from partitioner.graph import ModelGraph
from tests.zoo.entry import Entry

__all__ = ["found_leaves", "leaf_faults", "shares"]

LEAF = re.compile(r"^(\S+) runs as a whole: (.*) \((.*)\)$")
LARGEST_LEAF = 0.25
"""Share of the FLOPs that a module may hold that could not be recorded through."""


def found_leaves(graph: ModelGraph) -> dict[str, str]:
    """Return path → reason of every module that could not be recorded through."""
    matches = filter(None, map(LEAF.match, graph.assumptions))
    return {match[1]: match[2] for match in matches}


def shares(costed: CostedGraph, leaves: Iterable[str]) -> dict[str, float]:
    """Return path → share of the forward FLOPs."""
    flops = dict.fromkeys(leaves, 0)
    for node, cost in costed.costs.items():
        if node.op == "call_module" and node.target in flops:
            flops[str(node.target)] += cost.forward_flops
    total = max(costed.total.forward_flops, 1)
    return {path: count / total for path, count in flops.items()}


def leaf_faults(
    entry: Entry, leaves: dict[str, str], held: dict[str, float]
) -> list[str]:
    """Say which leaves, reasons and sizes are not those of the entry."""
    faults = []
    if set(leaves) != set(entry.leaves):
        faults.append(f"leaves are {leaves}, not {dict(entry.leaves)}")
    for path, reason in leaves.items():
        if entry.leaves.get(path, "") not in reason:
            faults.append(f"leaf {path}: {reason!r} is not {entry.leaves[path]!r}")
        if held[path] > LARGEST_LEAF and not entry.heavy_leaf:
            faults.append(f"leaf {path} holds {held[path]:.0%} of the FLOPs")
    return faults
