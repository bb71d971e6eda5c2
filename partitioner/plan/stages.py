"""What each stage of a plan runs, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from partitioner.cost.put_off import put_off_bytes
from partitioner.cost.weights import read_weights
from partitioner.errors import MemoryLimitError
from partitioner.graph import ModelGraph, info
from partitioner.report.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from partitioner.cost.memory import Engine, HeldBytes
    from partitioner.costed import CostedGraph
    from partitioner.emit import Placement
    from partitioner.plan.training import TrainablePlan
    from partitioner.solve import Score, StageScore

__all__ = ["StagePlan", "check_put_off", "put_off_bytes_by_stage", "stage_plans"]


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


def put_off_bytes_by_stage(
    graph: ModelGraph, placement: Placement, micro_batches: int
) -> list[int]:
    """Return what zero bubble holds on each stage beyond what 1F1B does.

    Stage s puts weight gradients off by s micro-batches.

    Args:
        graph: The recorded model.
        placement: Where its nodes are, and what is recomputed: that is not put off.
        micro_batches: Of one step.
    """
    return [
        min(stage, micro_batches)
        * put_off_bytes(graph, [n for n in nodes if n not in placement.block_of])
        for stage, nodes in enumerate(_nodes_by_stage(graph, placement))
    ]


def check_put_off(plan: TrainablePlan) -> None:
    """Check that a plan for 1F1B has room for zero bubble.

    Raises:
        MemoryLimitError: A stage would need more than its limit.
    """
    more = put_off_bytes_by_stage(
        plan.graph, plan.placement, plan.options.micro_batches
    )
    limits = plan.problem.limits
    for stage, more_bytes in zip(plan.stages, more, strict=True):
        limit_bytes = limits[plan.problem.rank_of(stage.index)]
        needed_bytes = stage.memory_bytes + more_bytes
        if more_bytes and limit_bytes is not None and needed_bytes > limit_bytes:
            raise MemoryLimitError(
                f"zero_bubble=True does not fit: stage {stage.index} would need "
                f"{format_bytes(needed_bytes)}, of it {format_bytes(more_bytes)} for "
                f"weight gradients that are put off; the limit is "
                f"{format_bytes(limit_bytes)}",
                stage=stage.index,
                needed_bytes=needed_bytes,
                limit_bytes=limit_bytes,
                hint="leave zero_bubble out, use a smaller micro-batch, or more stages",
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
