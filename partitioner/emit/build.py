"""Layers → what DeepSpeed takes: layer specs, pipeline module, batch adapter."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from partitioner.capture.tree import flatten
from partitioner.emit.identity import plan_record
from partitioner.emit.weights import segment_spec, weighted
from partitioner.errors import EmitError
from partitioner.runtime.agreement import (
    agree,
    ensure_process_group,
    raise_on_all_ranks,
)
from partitioner.runtime.batch import BatchAdapter
from partitioner.runtime.dual_pipe import PartitionedDualPipeVModule
from partitioner.runtime.eager import EagerPipelineModule
from partitioner.runtime.inputs import InputConstant, InputLeaf
from partitioner.runtime.loss import LossHead
from partitioner.runtime.pipeline_module import PartitionedPipelineModule
from partitioner.runtime.pipeline_options import check_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deepspeed.pipe import LayerSpec

    from partitioner.emit.layers import Layers
    from partitioner.graph import InputSpec, ModelGraph
    from partitioner.options import Options
    from partitioner.runtime.weights import GivenWeights

__all__ = ["batch_adapter", "build_pipeline", "layer_specs"]


_KINDS: Mapping[str, type[PartitionedPipelineModule]] = {
    "1f1b": PartitionedPipelineModule,
    "eager-1f1b": EagerPipelineModule,
    "dualpipev": PartitionedDualPipeVModule,
}


class HasLayers(Protocol):
    """A plan, as far as building needs it."""

    @property
    def options(self) -> Options:
        """What was asked for."""

    @property
    def layers(self) -> Layers:
        """The segments."""

    @property
    def compiled_layers(self) -> Layers:
        """The segments, if they are to be compiled."""

    @property
    def graph(self) -> ModelGraph:
        """The recorded model."""


def layer_specs(layers: Layers) -> list[LayerSpec]:
    """Return one spec for each segment.

    A spec holds the user's own modules; ``build()`` makes the segment around them.
    """
    return [segment_spec(layer) for layer in layers.layers]


def build_pipeline(
    agreed_by: Callable[[Callable[[dict[str, Any]], dict[str, Any]]], HasLayers],
    adapter: BatchAdapter,
    loss_fn: Callable[[Any, Any], Any] | None,
    options: Mapping[str, Any],
    *,
    compiled: Mapping[str, Any] | None = None,
    weights: GivenWeights | None = None,
) -> PartitionedPipelineModule:
    """Build this rank's part of the pipeline that all ranks agreed on.

    Args:
        agreed_by: Returns the plan to use, given a function that exchanges decisions.
        adapter: The batch adapter, which knows how labels were flattened.
        loss_fn: The user's loss, or None.
        options: Keyword arguments for DeepSpeed's ``PipelineModule``.
        compiled: Keyword arguments for ``torch.compile``; None: do not.
        weights: Where this rank's parameters and buffers get their values; None:
            they have them.

    Raises:
        PlanMismatchError: Ranks recorded different models.
        RuntimeGuardError: No launcher, a wrong world size, other versions.
        EmitError: The model has no weights, or the loss has parameters of the model.
        WeightsError: ``weights`` does not give all that a stage needs.
    """
    ensure_process_group()
    plan = agreed_by(partial(agree, what="agreeing on the plan"))
    schedule = plan.options.schedule
    with raise_on_all_ranks("cutting the model"):
        check_precision(plan.graph.dtype)
        layers = plan.layers if compiled is None else plan.compiled_layers
        if weights is None:
            _check_has_weights(plan.graph)
            specs, body = layer_specs(layers), layers.head
        else:
            given = weighted(plan.graph, layers, weights, twins=schedule == "dualpipev")
            specs, body = given.specs, given.head
        head = LossHead(loss_fn, body, layers.rebuild, adapter.labels)
        _check_own_parameters(loss_fn, plan.graph)
        record = plan_record(plan.graph, layers)
        if weights is not None:
            record = replace(record, unplaced=given.unplaced(record.unplaced))
    # Under DualPipeV the loss comes long after its micro-batch was loaded.
    adapter.labels.clear(keeps_all=schedule == "dualpipev")
    module = _KINDS[schedule](
        specs,
        parts=layers.parts,
        ties=layers.ties,
        loss_head=head,
        guards=plan.graph.weight_guards,
        aliases=plan.graph.aliases,
        input_names=[plan.graph.inputs[number].name for number in layers.first],
        **options,
    )
    module.plan_record = record
    module.counts_on_graphs = plan.options.cuda_graphs
    if compiled is not None:
        module.compile(**compiled)
    return module


def _check_own_parameters(
    loss_fn: Callable[[Any, Any], Any] | None, graph: ModelGraph
) -> None:
    """Refuse a loss that holds parameters of the model: no tie would join them."""
    if not isinstance(loss_fn, nn.Module):
        return
    names = {
        id(parameter): name
        for name, parameter in graph.model.named_parameters(remove_duplicate=False)
    }
    for own, parameter in loss_fn.named_parameters():
        if id(parameter) in names:
            message = (
                f"the loss's parameter {own!r} is the model's {names[id(parameter)]!r}"
            )
            hint = "let the model return what the loss needs of it"
            raise EmitError(message, hint=hint)
        if parameter.device.type == "meta":
            message = f"the loss's parameter {own!r} is on the meta device"
            raise EmitError(message, hint="give it values before the pipeline is built")


def _check_has_weights(graph: ModelGraph) -> None:
    model = graph.model
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            message = f"{kind} {name!r} is on the meta device: it has no values"
            hint = (
                "pass weights=FOLDER, the checkpoint that each rank reads its share "
                "from, or weights=InitialWeights(seed=0)"
            )
            raise EmitError(message, hint=hint)


def batch_adapter(graph: ModelGraph, layers: Layers) -> BatchAdapter:
    """Return the function that turns a batch into what each end needs."""
    names = _parameter_names(graph)
    adapter = BatchAdapter(
        leaves=tuple(_leaf(spec, names) for spec in graph.inputs),
        first=layers.first,
        late=layers.late,
        constants=tuple(_constants(graph, names)),
        floating=graph.dtype if graph.casts else None,
        free_sizes=_free_sizes(graph),
        guards=graph.guards,
    )
    return replace(adapter, absent=_absent(graph, adapter.parameters))


def _free_sizes(graph: ModelGraph) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return for each free size the (input, dimension) pairs that have it."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for index, spec in enumerate(graph.inputs):
        for dim, symbol in enumerate(spec.symbols):
            if symbol >= 0:
                groups.setdefault(symbol, []).append((index, dim))
    return tuple(tuple(groups[symbol]) for symbol in sorted(groups))


def _absent(graph: ModelGraph, given: tuple[str, ...]) -> dict[str, Any]:
    """Return the forward's parameters that the example left at their defaults."""
    parameters = inspect.signature(graph.model.forward).parameters.values()
    return {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty and parameter.name not in given
    }


def _parameter_names(graph: ModelGraph) -> list[str]:
    """Return the names of the forward's positional parameters."""
    return [
        parameter.name
        for parameter in inspect.signature(graph.model.forward).parameters.values()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _parameter_of(path: tuple[str | int, ...], names: list[str]) -> str:
    """Return the forward's parameter that a path in the arguments begins with."""
    where, head = path[0], path[1]
    if where == "kwargs" or not isinstance(head, int):
        return str(head)
    return names[head] if head < len(names) else f"args_{head}"


def _leaf(spec: InputSpec, names: list[str]) -> InputLeaf:
    shape = tuple(
        None if symbol >= 0 else size
        for size, symbol in zip(spec.shape, spec.symbols, strict=True)
    )
    return InputLeaf(
        name=spec.name,
        parameter=_parameter_of(spec.path, names),
        path=spec.path[2:],
        dtype=spec.dtype,
        shape=shape,
    )


def _constants(graph: ModelGraph, names: list[str]) -> list[InputConstant]:
    args, kwargs = graph.example
    found = []
    for steps, leaf in flatten({"args": args, "kwargs": dict(kwargs)}):
        if not isinstance(leaf, Tensor):
            path = tuple(step[1] for step in steps)
            constant = InputConstant(
                parameter=_parameter_of(path, names), path=path[2:], value=leaf
            )
            found.append(constant)
    return found
