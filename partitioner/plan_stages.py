"""What each stage of a plan runs, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.cost.weights import read_weights
from partitioner.graph import ModelGraph, info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from partitioner.cost.memory import Engine, HeldBytes
    from partitioner.costed import CostedGraph
    from partitioner.emit import Placement
    from partitioner.solve import Score, StageScore

__all__ = ["StagePlan", "stage_plans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage: what it runs and what that costs, for one micro-batch."""

    index: int
    modules: tuple[str, ...]
    """Paths of whole modules; "… (part)" where a cut goes through one."""
    parameters: int
    """Elements of the parameters it holds, tied ones included."""
    held: HeldBytes
    """Weights, gradients, master copies and states of the optimizer."""
    forward_flops: int
    backward_flops: int
    checkpointed: tuple[str, ...]
    """Blocks whose activations are recomputed."""
    score: StageScore

    @property
    def forward_s(self) -> float:
        """Forward time."""
        return self.score.forward_s

    @property
    def backward_s(self) -> float:
        """Backward time, recomputation not included."""
        return self.score.backward_s

    @property
    def time_s(self) -> float:
        """Forward, backward, recomputation and communication."""
        return self.score.time_s

    @property
    def memory_bytes(self) -> int:
        """Peak memory."""
        return self.score.memory_bytes

    @property
    def sent_bytes(self) -> int:
        """Bytes sent forwards over the boundary after it."""
        return self.score.sent_bytes


def stage_plans(
    costed: CostedGraph, score: Score, placement: Placement, engine: Engine
) -> tuple[StagePlan, ...]:
    """Describe every stage."""
    graph = costed.graph
    weights = read_weights(graph)
    nodes = _nodes_by_stage(graph, placement)
    held = [{w for node in here for w in weights[node]} for here in nodes]
    return tuple(
        StagePlan(
            index=index,
            modules=tuple(_module_names(graph, nodes[index])),
            parameters=sum(w.numel for w in held[index] if w.is_parameter),
            held=engine.by_kind(held[index]),
            forward_flops=sum(costed.costs[n].forward_flops for n in nodes[index]),
            backward_flops=sum(costed.costs[n].backward_flops for n in nodes[index]),
            checkpointed=tuple(
                dict.fromkeys(
                    placement.block_of[node].rpartition("@")[0]
                    for node in nodes[index]
                    if node in placement.block_of
                )
            ),
            score=stage,
        )
        for index, stage in enumerate(score.stages)
    )


def _nodes_by_stage(graph: ModelGraph, placement: Placement) -> list[list[fx.Node]]:
    """Return the nodes that each stage runs; the loss part is the last stage's."""
    found: list[list[fx.Node]] = [[] for _ in range(placement.stages)]
    for node in graph.graph.nodes:
        if node in placement.stage_of:
            found[placement.stage_of[node]].append(node)
        elif info(node).kind == "late":
            found[-1].append(node)
    return found


def _module_names(graph: ModelGraph, nodes: Iterable[fx.Node]) -> list[str]:
    """Name the outermost modules that are whole here, and parts where nothing is."""
    here = set(nodes)
    names, parts = _whole_and_parts(graph, here)
    found: dict[str, None] = {}
    for node in graph.graph.nodes:
        if node not in here:
            continue
        if node in names:
            found[names[node]] = None
        elif node.op == "call_module":
            found[str(node.target)] = None
        else:
            _name_part(node, parts, names, found)
    return list(found)


def _whole_and_parts(
    graph: ModelGraph, here: set[fx.Node]
) -> tuple[dict[fx.Node, str], dict[str, set[fx.Node]]]:
    """Return the outermost whole module of each node, and the modules cut through."""
    names: dict[fx.Node, str] = {}
    parts: dict[str, set[fx.Node]] = {}
    for span in graph.spans:  # outer calls come first
        placed = {n for n in span.nodes if info(n).kind in ("compute", "late")}
        if placed and placed <= here:
            for node in placed:
                names.setdefault(node, span.path)
        elif placed & here:
            parts[span.path] = placed & here
    return names, parts


def _name_part(
    node: fx.Node,
    parts: Mapping[str, set[fx.Node]],
    names: Mapping[fx.Node, str],
    found: dict[str, None],
) -> None:
    """Name the innermost opened module of a loose node, if nothing else does."""
    inner = ""
    for path, inside in parts.items():
        if node in inside and len(path) > len(inner):
            inner = path
    whole_inside = any(
        other in names or other.op == "call_module" for other in parts.get(inner, ())
    )
    if inner and not whole_inside:
        found[f"{inner} (part)"] = None
