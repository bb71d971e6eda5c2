"""Where every node runs: the solver's answer in terms of graph nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partitioner.errors import EmitError
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import fx

    from partitioner.graph import ModelGraph

__all__ = ["Piece", "Placement", "check_placement", "pieces", "written_later"]

SHOWN_FAULTS = 20


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
    each stage is an order in which everything can run. A recomputed segment works on
    copies of what it writes in place: where another segment has a part in the same
    memory (something else runs in the middle of a block), neither is recomputed.
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
    shared = _sharing_writes(graph, found)
    return [
        replace(piece, block="") if index in shared else piece
        for index, piece in enumerate(found)
    ]


def _sharing_writes(graph: ModelGraph, found: Sequence[Piece]) -> set[int]:
    """Return the pieces that write, or view, what another piece has a part in."""
    piece_of = {node: i for i, piece in enumerate(found) for node in piece.nodes}
    shared: set[int] = set()
    for group in graph.groups:
        parts = {piece_of[node] for node in group if node in piece_of}
        if len(parts) > 1 and any(info(node).writes for node in group):
            shared |= parts
    return shared


def written_later(
    graph: ModelGraph, found: Sequence[Piece]
) -> list[frozenset[fx.Node]]:
    """Return for each piece whose memory a later piece of its stage writes in place.

    What recomputation begins with must be as it was: of these a copy is needed. The
    loss part follows the last piece.
    """
    piece_of = {node: i for i, piece in enumerate(found) for node in piece.nodes}
    stages = [*(piece.stage for piece in found), found[-1].stage]
    later: list[set[fx.Node]] = [set() for _ in found]
    for group in graph.groups:
        writers = [
            piece_of.get(node, len(found))
            for node in group
            if info(node).writes and info(node).kind in ("compute", "late")
        ]
        for index in range(len(found)):
            if any(w > index and stages[w] == stages[index] for w in writers):
                later[index] |= group
    return [frozenset(nodes) for nodes in later]


def check_placement(graph: ModelGraph, placement: Placement) -> None:
    """Check that stages are legal and non-empty.

    Raises:
        EmitError: Lists every rule that is broken.
    """
    faults = [
        *_stage_faults(graph, placement),
        *_order_faults(graph, placement),
        *_group_faults(graph, placement),
    ]
    if faults:
        shown = [f"- {fault}" for fault in faults[:SHOWN_FAULTS]]
        if len(faults) > SHOWN_FAULTS:
            shown.append(f"- and {len(faults) - SHOWN_FAULTS} more")
        raise EmitError("\n".join(["the placement is not legal:", *shown]))


def _stage_faults(graph: ModelGraph, placement: Placement) -> Iterator[str]:
    stages, stage_of = placement.stages, placement.stage_of
    for node in graph.graph.nodes:
        if info(node).kind != "compute":
            continue
        if node not in stage_of:
            yield f"{info(node).id} has no stage"
        elif not 0 <= stage_of[node] < stages:
            yield f"{info(node).id} is on stage {stage_of[node]} of {stages}"
    for stage in sorted(set(range(stages)) - set(stage_of.values())):
        yield f"stage {stage} is empty"


def _order_faults(graph: ModelGraph, placement: Placement) -> Iterator[str]:
    stage_of = placement.stage_of
    for node, stage in stage_of.items():
        for source in node.all_input_nodes:
            if stage_of.get(source, 0) > stage:
                yield f"{info(node).id} runs before {info(source).id}, which it reads"
    for before, after in graph.order_edges:
        # Inputs come before all stages, and the loss part after.
        if stage_of.get(before, 0) > stage_of.get(after, placement.stages):
            yield (
                f"{info(after).id} runs before {info(before).id}, and one of them "
                "writes what the other reads"
            )


def _group_faults(graph: ModelGraph, placement: Placement) -> Iterator[str]:
    for group in graph.groups:
        if len({placement.stage_of[n] for n in group if n in placement.stage_of}) > 1:
            names = ", ".join(sorted(info(node).id for node in group))
            yield f"a cut separates what must stay together: {names}"
