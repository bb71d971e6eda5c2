"""Where every node runs: the solver's answer in terms of graph nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.graph import ModelGraph, info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

__all__ = ["Piece", "Placement", "pieces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Stage and activation checkpoint of every placed node."""

    stages: int
    stage_of: Mapping[fx.Node, int]
    """Stage of every node of kind ``compute``."""
    block_of: Mapping[fx.Node, str]
    """Name of the activation-checkpoint block of the recomputed nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The nodes of one segment, in program order."""

    stage: int
    block: str
    """Name of the activation-checkpoint block; "" if nothing is recomputed."""
    nodes: tuple[fx.Node, ...]


def pieces(graph: ModelGraph, placement: Placement) -> list[Piece]:
    """Cut every stage into segments: each recomputed block is one, and each rest.

    Stages are monotone along data and order edges, so that program order within
    each stage is an order in which everything can run.
    """
    found: list[Piece] = []
    for stage in range(placement.stages):
        run: list[fx.Node] = []
        block = ""
        for node in graph.graph.nodes:
            if info(node).kind != "compute" or placement.stage_of[node] != stage:
                continue
            name = placement.block_of.get(node, "")
            if run and name != block:
                found.append(Piece(stage=stage, block=block, nodes=tuple(run)))
                run = []
            block = name
            run.append(node)
        if run:
            found.append(Piece(stage=stage, block=block, nodes=tuple(run)))
    return found
