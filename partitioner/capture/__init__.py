"""nn.Module → ModelGraph: record the forward, with modes and sizes left open."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from partitioner.capture.build import GraphBuilder
from partitioner.capture.casts import cast_notes, statistics_notes
from partitioner.capture.classify import classify
from partitioner.capture.constraints import resolve_constraints, together
from partitioner.capture.effects import find_effects
from partitioner.capture.fakes import model_device
from partitioner.capture.hidden import hidden_groups
from partitioner.capture.inputs import resolve_example
from partitioner.capture.overlaps import (
    overlap_groups,
    overlap_notes,
    overlapping_weights,
)
from partitioner.capture.takes import Takes, record_all
from partitioner.errors import OptionError
from partitioner.graph import ModelGraph, info
from partitioner.runtime.guards import WeightGuards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partitioner.capture.patterns import Pattern

__all__ = ["capture"]


def capture(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    dtype: torch.dtype | None = None,
    leaf: Sequence[Pattern] = (),
    keep_together: Sequence[Any] = (),
    no_cut_inside: Sequence[Pattern] = (),
    pin: Mapping[Pattern, int] | None = None,
    equal_stages: Sequence[Pattern] = (),
) -> ModelGraph:
    """Record one forward of ``model`` as a graph; the module is left as it was.

    The forward runs on fake tensors (Python control flow, keyword arguments and
    library code behave as in eager mode, nothing is allocated), once in train mode,
    once in eval mode, and once for each input size that may vary.

    Args:
        model: Any module, on any device, ``meta`` included.
        example_inputs: One micro-batch: a tensor, a tuple (positional) or a dict
            (keywords); None if the model carries ``example_input_array`` or
            ``dummy_inputs``.
        dtype: Floating dtype the engine will run the parameters in; None keeps the
            model's. Buffers keep theirs.
        leaf: Modules that run whole, on one stage: paths, globs or classes.
        keep_together: Groups of such patterns; each group runs on one stage.
        no_cut_inside: Modules that no cut may go through.
        pin: The stage that modules run on, by pattern.
        equal_stages: Modules of which every stage runs equally many.

    Raises:
        ExampleInputsError: No example inputs, or they do not fit the signature.
        ForwardError: The forward raised on them (the original error is chained).
        DataDependentError: The root's own code reads the values of tensors.
        OptionError: ``model`` is no module, or a pattern matches nothing.
    """
    _check_module(model)
    constraints = resolve_constraints(
        model,
        leaf=leaf,
        keep_together=keep_together,
        no_cut_inside=no_cut_inside,
        pin=pin,
        equal_stages=equal_stages,
    )
    example = resolve_example(model, example_inputs)
    takes = record_all(model, example, dtype, constraints.leaf)
    builder = GraphBuilder(takes)
    builder.build()
    graph = builder.graph
    effects = find_effects(graph, takes.recording.weight_storages)
    shared = overlapping_weights(model)
    casts = cast_notes(graph, model, takes.aliases)
    casts += statistics_notes(model, dtype)
    notes = [*takes.notes, *overlap_notes(shared), *casts]
    effects.groups += overlap_groups(graph, shared, takes.aliases)
    effects.groups += hidden_groups(graph, model, takes.recording.counting)
    classify(graph, model, effects)
    return ModelGraph(
        model=model,
        graph=graph,
        spans=builder.spans,
        inputs=takes.inputs,
        example=(example.args, example.kwargs),
        output=builder.output_structure(),
        dtype=dtype or _parameter_dtype(model),
        casts=dtype is not None,
        aliases=takes.aliases,
        groups=(*effects.groups, *together(graph, builder.spans, constraints)),
        order_edges=tuple(effects.order_edges),
        constants=_constants(takes),
        written_buffers=effects.written_buffers,
        constraints=constraints,
        configs=takes.configs,
        assumptions=tuple(dict.fromkeys(notes)),
        guards=takes.guards,
        weight_guards=WeightGuards(
            dtypes=_recorded_dtypes(model, dtype),
            device_type=model_device(model).type,
            device_reads=takes.device_reads,
        ),
        fingerprint=fingerprint(graph, model),
    )


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        message = f"model is a {type(model).__name__}, not a torch.nn.Module"
        raise OptionError(message, hint="pass the module itself, not its class")


def _parameter_dtype(model: nn.Module) -> torch.dtype:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.get_default_dtype()


def _recorded_dtypes(
    model: nn.Module, dtype: torch.dtype | None
) -> dict[str, torch.dtype]:
    return {
        name: dtype if dtype and parameter.is_floating_point() else parameter.dtype
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _constants(takes: Takes) -> dict[str, torch.Tensor]:
    return {
        str(call.target): call.tensor
        for call in takes.recording.calls
        if call.kind == "constant" and call.tensor is not None
    }


def fingerprint(graph: fx.Graph, model: nn.Module) -> str:
    """Hash operations, arguments, leaves' settings, and weights' shapes and dtypes."""
    digest = hashlib.sha256()
    for node in graph.nodes:
        target = node.target
        text = target if isinstance(target, str) else _function_name(target)
        arguments = fx.map_arg((node.args, node.kwargs), lambda n: info(n).id)
        if node.op == "call_module":
            text += repr(model.get_submodule(text))  # a stride, a rate, a constant
        digest.update(f"{info(node).id}|{node.op}|{text}|{arguments}\n".encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
    return digest.hexdigest()


def _function_name(function: object) -> str:
    module = getattr(function, "__module__", "") or ""
    return f"{module}.{getattr(function, '__qualname__', repr(type(function)))}"
