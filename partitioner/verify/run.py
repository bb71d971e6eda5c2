"""Run the original and the cut model on the same inputs, forward and backward."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from partitioner.capture.fakes import caches_off
from partitioner.capture.inputs import Example
from partitioner.capture.session import set_mode
from partitioner.capture.tree import flatten
from partitioner.capture.untouched import untouched
from partitioner.runtime.checkpointed_segment import CheckpointedSegment
from partitioner.runtime.segment import Segment, SegmentProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.emit import Layers
    from partitioner.graph import ModelGraph
    from partitioner.verify.seeding import Seeding

__all__ = ["Outcome", "run_cut", "run_original", "undisturbed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run left behind."""

    outputs: tuple[Tensor, ...]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


MODES = {"train": True, "eval": False}
"""One step in each, one after the other: what the first leaves in buffers and
attributes is there for the second."""


def run_original(
    graph: ModelGraph,
    seeding: Seeding,
    tensors: Sequence[Tensor],
    *,
    nudge: int | None = None,
) -> dict[str, Outcome]:
    """Run the user's model as it is in both modes, every draw seeded.

    Args:
        graph: The recorded model.
        seeding: Seeds the draws.
        tensors: The inputs.
        nudge: If given, weights and inputs move by one rounding, up or down as a
            generator with this seed says.
    """
    outcomes = {}
    with undisturbed(graph):
        if nudge is not None:
            generator = torch.Generator().manual_seed(nudge)
            for parameter in graph.model.parameters():
                parameter.data = _nudged(parameter.data, generator)
            tensors = [_nudged(tensor, generator) for tensor in _own(graph, tensors)]
        for mode, training in MODES.items():
            args, kwargs = call_with(graph, _own(graph, tensors))
            with _in_mode(graph, training=training):
                with caches_off(graph.configs), seeding.following():
                    out = graph.model(*args, **kwargs)
                outputs = tensor_leaves(out)
                _backward(outputs)
                outcomes[mode] = _outcome(graph.model, outputs)
    return outcomes


def _nudged(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a copy in which each number is one rounding larger or smaller."""
    if not tensor.is_floating_point():
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    step = torch.finfo(tensor.dtype).eps * signs.to(tensor.device, tensor.dtype)
    return tensor * (1 + step)


def run_cut(
    graph: ModelGraph, layers: Layers, tensors: Sequence[Tensor]
) -> dict[str, Outcome]:
    """Run every stage in turn in both modes, through the real wire format."""
    outcomes = {}
    with undisturbed(graph):
        segments = [_segment(layer) for layer in layers.layers]
        for mode, training in MODES.items():
            with _in_mode(graph, training=training):
                for segment in segments:
                    segment.train(training)
                mine = _own(graph, tensors)
                outputs = _pipeline(layers, segments, mine, training=training)
                outcomes[mode] = _outcome(graph.model, outputs)
    return outcomes


def _pipeline(
    layers: Layers,
    segments: Sequence[Segment],
    tensors: Sequence[Tensor],
    *,
    training: bool,
) -> tuple[Tensor, ...]:
    """Run forward and backward, packing and unpacking at each boundary.

    As the engine does: a stage's inputs are detached leaves, and their gradients are
    handed back to the stage before.
    """
    received: Any = _bare(tuple(tensors[index] for index in layers.first))
    entries: list[Any] = []
    exits: list[Any] = []
    for stage in range(len(layers.parts) - 1):
        if stage:
            received = _arrive(exits[-1])
        entries.append(received)
        value = received
        for segment in segments[layers.parts[stage] : layers.parts[stage + 1]]:
            value = segment(value)
        exits.append(value)
    outputs = _finish(layers, exits[-1], tensors, training=training)
    _backward(outputs, token=exits[-1][0])
    for stage in range(len(exits) - 2, -1, -1):
        _carrier(exits[stage]).backward(_carrier(entries[stage + 1]).grad)
    return outputs


@contextmanager
def _in_mode(graph: ModelGraph, *, training: bool) -> Iterator[None]:
    """Set the mode and forget gradients; put the user's flags back afterwards."""
    flags = [(module, module.training) for module in graph.model.modules()]
    for parameter in graph.model.parameters():
        parameter.grad = None
    set_mode(graph.model, training=training)
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _own(graph: ModelGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy the inputs, which the model may write to, in the dtypes of the recording."""
    pairs = zip(tensors, graph.inputs, strict=True)
    if not graph.casts:
        return [tensor.clone() for tensor, _ in pairs]
    return [tensor.to(spec.dtype, copy=True) for tensor, spec in pairs]


def call_with(
    graph: ModelGraph, tensors: Sequence[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (args, kwargs) of the forward with these tensors as inputs."""
    args, kwargs = graph.example
    example = Example(args=args, kwargs=dict(kwargs), inputs=graph.inputs)
    return example.with_tensors(list(tensors))


def tensor_leaves(output: Any) -> tuple[Tensor, ...]:
    """Return the tensors of an output, in order."""
    return tuple(leaf for _, leaf in flatten(output) if isinstance(leaf, Tensor))


@contextmanager
def undisturbed(graph: ModelGraph) -> Iterator[None]:
    """Run in the plan's dtype; put back weights, modes, buffers and generators."""
    model = graph.model
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    weights = [(p, p.data, p.grad) for p in model.parameters()]
    try:
        for name, parameter in model.named_parameters():
            parameter.grad = None
            parameter.data = _lent(graph, name, parameter.data)
        with untouched(model), torch.enable_grad():
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, data, gradient in weights:
            parameter.grad = None
            parameter.data = data
            parameter.grad = gradient


def _lent(graph: ModelGraph, name: str, data: Tensor) -> Tensor:
    """Return a parameter's values for the run: copies where they would change."""
    casts = graph.casts and data.is_floating_point()
    dtype = graph.dtype if casts else data.dtype
    return data.to(dtype, copy=name in graph.written_buffers)


def _segment(layer: Any) -> Segment:
    kind = CheckpointedSegment if layer.body.checkpointed else Segment
    return kind(
        layer.body, receive=layer.receive, send=layer.send, is_first=layer.is_first
    )


def _bare(values: tuple[Tensor, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _carrier(value: Any) -> Tensor:
    carrier: Tensor = value if isinstance(value, Tensor) else value[0]
    return carrier


def _arrive(sent: Any) -> Any:
    """Copy what was sent, as a receive buffer would hold it."""
    tensors = (sent,) if isinstance(sent, Tensor) else sent
    copies = tuple(
        tensor.detach().clone().requires_grad_(tensor.is_floating_point())
        for tensor in tensors
    )
    return _bare(copies)


def _finish(
    layers: Layers, last: Any, tensors: Sequence[Tensor], *, training: bool
) -> tuple[Tensor, ...]:
    _, *values = last
    if layers.head is not None:
        program = SegmentProgram(layers.head)
        program.train(training)
        values = program(*values, *(tensors[index] for index in layers.late))
    return tensor_leaves(layers.rebuild(values))


def _backward(outputs: Sequence[Tensor], token: Tensor | None = None) -> None:
    """Send a fixed random gradient into every differentiable output."""
    roots = [tensor for tensor in outputs if tensor.requires_grad]
    cotangents = []
    for number, tensor in enumerate(roots):
        generator = torch.Generator().manual_seed(number)
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        cotangents.append(noise.to(tensor.device).to(tensor.dtype))
    if token is not None and token.requires_grad:
        roots.append(token)
        cotangents.append(torch.zeros_like(token))
    if roots:
        torch.autograd.backward(roots, cotangents)


def _outcome(model: nn.Module, outputs: Sequence[Tensor]) -> Outcome:
    return Outcome(
        outputs=tuple(tensor.detach().clone() for tensor in outputs),
        gradients={
            name: None if p.grad is None else p.grad.detach().clone()
            for name, p in model.named_parameters()
        },
        buffers={name: b.detach().clone() for name, b in model.named_buffers()},
    )
