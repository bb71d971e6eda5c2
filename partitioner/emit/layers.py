"""The layers of the pipeline: what DeepSpeed is given, before it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from partitioner.capture.tree import rebuild
from partitioner.capture.unsendable import unsendable_values
from partitioner.emit.blocks import Blocks
from partitioner.emit.flow import Flow, find_flow
from partitioner.emit.fuse import Call, fuse
from partitioner.emit.gradients import GradientFlow, requires_grad
from partitioner.emit.lint import check_boundary
from partitioner.emit.placement import (
    Piece,
    Placement,
    check_placement,
    pieces,
    written_later,
)
from partitioner.emit.write import Seeder, write_segment
from partitioner.graph import ModelGraph, TensorMeta, info
from partitioner.runtime.pipeline_module import ParameterTie
from partitioner.runtime.wire import WireSpec
from partitioner.runtime.wire_value import WireValue

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from partitioner.runtime.segment import SegmentBody

__all__ = ["Layer", "Layers", "emit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One segment with its boundaries."""

    body: SegmentBody
    stage: int
    receive: WireSpec | None
    send: WireSpec | None
    is_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Everything the runtime needs to build a pipeline."""

    layers: tuple[Layer, ...]
    parts: tuple[int, ...]
    """First layer of each stage, and the number of layers."""
    boundaries: tuple[tuple[fx.Node, ...], ...]
    """Values that cross after each stage but the last."""
    ties: tuple[ParameterTie, ...]
    first: tuple[int, ...]
    """Numbers of the inputs that the first stage receives."""
    late: tuple[int, ...]
    """Numbers of the inputs that the loss part receives."""
    head: SegmentBody | None
    """The loss part: nodes that read late inputs."""
    output: Any
    """The output's template; its leaves are nodes."""
    leaves: tuple[int, ...] | None
    """Without a head: for each leaf of the output its place among the values."""

    def rebuild(self, values: Sequence[Any]) -> Any:
        """Return the model's output from its tensor leaves, in order.

        Args:
            values: What the head returns; without a head what the last segment does.
        """
        if self.leaves is not None:
            values = [values[index] for index in self.leaves]
        queue = iter(values)
        return rebuild(
            self.output, lambda leaf: next(queue) if isinstance(leaf, fx.Node) else leaf
        )


def emit(
    graph: ModelGraph,
    placement: Placement,
    *,
    seeder: Seeder | None = None,
    compiled: bool = False,
) -> Layers:
    """Cut the recorded model into layers.

    Args:
        graph: The recorded model.
        placement: Stage and activation checkpoint of every node; stages must be
            monotone along data and order edges, and keep groups together.
        seeder: Wraps every random draw; for verification only.
        compiled: The layers will be compiled: repeated modules are called by
            themselves, also where a module around them could be called whole.

    Raises:
        EmitError: The placement breaks one of these rules (each is named).
    """
    check_placement(graph, placement)
    found = pieces(graph, placement)
    blocks = Blocks(graph)
    calls = whole = _fused(graph, found)
    if compiled:
        calls = _fused(graph, found, opened=blocks.around())
    late = [node for node in graph.graph.nodes if info(node).kind == "late"]
    # A batch is the same for both: what a whole call is given is received.
    flow = find_flow(graph, [a + b for a, b in zip(whole, calls, strict=True)], late)
    starts = [
        i for i in range(len(found)) if i == 0 or found[i].stage != found[i - 1].stage
    ]
    parts = (*starts, len(found))
    wires = _Wires(graph, placement)
    later = written_later(graph, found)
    layers = tuple(
        _layer(
            graph,
            found,
            calls,
            flow,
            wires,
            blocks=blocks.numbers(calls[index]),
            later=later[index],
            index=index,
            parts=parts,
            seeder=seeder,
        )
        for index in range(len(found))
    )
    head, leaves = _head(graph, late, flow, seeder)
    numbers = {
        node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))
    }
    return Layers(
        layers=layers,
        parts=parts,
        boundaries=tuple(flow.incoming[start] for start in starts[1:]),
        ties=_ties(graph, layers),
        first=tuple(numbers[node] for node in flow.first),
        late=tuple(numbers[node] for node in flow.late),
        head=head,
        output=graph.output,
        leaves=leaves,
    )


def _fused(
    graph: ModelGraph, found: Sequence[Piece], opened: Collection[str] = ()
) -> list[list[Call]]:
    calls: list[list[Call]] = []
    at_hand: set[fx.Node] = {n for n in graph.graph.nodes if info(n).kind == "input"}
    for piece in found:
        calls.append(fuse(graph, piece.nodes, at_hand, opened))
        at_hand.update(piece.nodes)
    return calls


def _layer(
    graph: ModelGraph,
    found: Sequence[Piece],
    calls: Sequence[Sequence[Call]],
    flow: Flow,
    wires: _Wires,
    *,
    blocks: Sequence[int],
    later: frozenset[fx.Node],
    index: int,
    parts: Sequence[int],
    seeder: Seeder | None,
) -> Layer:
    last = index + 1 == len(found)
    incoming = flow.incoming[index]
    outgoing = flow.outgoing if last else flow.incoming[index + 1]
    piece = found[index]
    body = write_segment(
        graph,
        f"{index} of stage {piece.stage}",
        calls[index],
        incoming,
        outgoing,
        blocks=blocks,
        checkpointed=bool(piece.block),
        later=later,
        seeder=seeder,
    )
    starts, ends = index in parts and index > 0, index + 1 in parts and not last
    return Layer(
        body=body,
        stage=piece.stage,
        receive=wires.spec(incoming, piece.stage - 1) if starts else None,
        send=wires.spec(outgoing, piece.stage) if ends else None,
        is_first=index == 0,
    )


class _Wires:
    """Describes the values of boundaries."""

    def __init__(self, graph: ModelGraph, placement: Placement) -> None:
        self._flow = GradientFlow(graph)
        self._stage_of = placement.stage_of
        self._unsendable = unsendable_values(graph)

    def spec(self, values: Sequence[fx.Node], stage: int) -> WireSpec:
        """Describe the values of the boundary after a stage."""
        check_boundary(values, self._unsendable, stage)
        return WireSpec(tuple(self._value(node, stage) for node in values))

    def _value(self, node: fx.Node, stage: int) -> WireValue:
        facts = info(node)
        if facts.kind == "size":
            return WireValue(
                name=node.name, kind="int", dtype=None, shape=(), differentiable=False
            )
        meta = facts.outputs[0]
        differentiable = self._flow.comes_back(node, stage, self._stage_of)
        return WireValue(
            name=node.name,
            kind="tensor",
            dtype=meta.dtype,
            shape=_open_shape(meta),
            differentiable=differentiable,
            drops_gradient=requires_grad(node) and not differentiable,
            source=facts.source,
        )


def _open_shape(meta: TensorMeta) -> tuple[int | None, ...]:
    return tuple(
        None if dim in meta.varying else size for dim, size in enumerate(meta.shape)
    )


def _head(
    graph: ModelGraph, late: Sequence[fx.Node], flow: Flow, seeder: Seeder | None
) -> tuple[SegmentBody | None, tuple[int, ...] | None]:
    output = next(iter(reversed(graph.graph.nodes)))
    leaves: list[fx.Node] = list(output.args[0])
    if not late and set(leaves) <= set(flow.outgoing):
        return None, tuple(flow.outgoing.index(node) for node in leaves)
    calls = [Call(nodes=(node,)) for node in late]
    incoming = (*flow.outgoing, *flow.late)
    body = write_segment(graph, "loss part", calls, incoming, leaves, seeder=seeder)
    return body, None


def _ties(graph: ModelGraph, layers: Sequence[Layer]) -> tuple[ParameterTie, ...]:
    """Return every parameter that several stages hold."""
    stages: dict[str, set[int]] = {}
    for layer in layers:
        for name in held_parameters(layer.body):
            stages.setdefault(graph.aliases[name], set()).add(layer.stage)
    names: dict[str, list[str]] = {}
    for alias, first in graph.aliases.items():
        names.setdefault(first, []).append(alias)
    return tuple(
        ParameterTie(
            name=first,
            stages=tuple(sorted(held)),
            aliases=tuple(alias for alias in names[first] if alias != first),
        )
        for first, held in sorted(stages.items())
        if len(held) > 1
    )


def held_parameters(body: SegmentBody) -> Mapping[str, Any]:
    """Return the parameters a segment holds, by original name."""
    held = dict(body.parameters)
    for path, module in body.modules.items():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            held[f"{path}.{name}"] = parameter
    return held
