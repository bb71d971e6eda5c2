"""Run one node on fake tensors of its recorded shapes, forward and backward."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves

from partitioner.capture.forced import EXTREMES, ForcedDraws
from partitioner.capture.grouped import GroupedFakes
from partitioner.capture.untouched import untouched
from partitioner.cost.contexts import quiet, recorded_modes
from partitioner.cost.fused import FusedKernels
from partitioner.cost.kernels import KernelTrace
from partitioner.cost.leaves import ByIdentity, leaf_call, leaf_key
from partitioner.cost.live import LiveBytes
from partitioner.cost.slots import Slot, slot_maker, slot_of
from partitioner.cost.units import used_results
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from partitioner.graph import ModelGraph

__all__ = ["Arguments", "Forward", "NodeTrace", "Replay"]

_STEERING = {"training": True, "device": torch.device("cpu")}
"""What a stage reads at run time; everything is priced as it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Arguments of a node with a slot or a plain value in place of each node."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: tuple[Any, ...]
    """Nodes with equal keys run the same kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTrace:
    """Kernels of one node in each direction."""

    forward: KernelTrace
    backward: KernelTrace
    backward_peak_bytes: int = 0
    """The most that backward holds at once: gradients that come in and go out (the
    weights' as well), and what it needs in between, less what forward had kept inside
    the node and backward has freed by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """One forward of a node: what it read and what it returned."""

    arguments: Mapping[Slot, torch.Tensor]
    weights: list[torch.Tensor]
    result: Any


class Replay:
    """Runs nodes of one graph on fake tensors; real weights are never touched.

    Args:
        graph: The recorded model.
        fused: Whether attention and dropout run as an accelerator's kernels do.
    """

    def __init__(self, graph: ModelGraph, *, fused: bool) -> None:
        self._graph = graph
        self._fused = fused
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._plain: dict[fx.Node, Any] = {}

    def arguments(self, node: fx.Node) -> Arguments:
        """Put slots and values in place of the nodes that ``node`` reads."""
        position = {source: i for i, source in enumerate(node.all_input_nodes)}

        def stand_in(source: fx.Node) -> Any:
            return self._stand_in(source, position[source])

        args, kwargs = fx.map_arg((node.args, node.kwargs), stand_in)
        target: Any = node.target
        if node.op == "call_module":
            target = leaf_key(self._graph.model, str(target))
        facts = info(node)
        key = (
            node.op,
            target,
            _frozen(args),
            _frozen(kwargs),
            facts.region,
            bool(facts.writes),
            any(meta.requires_grad for meta in facts.outputs),
            used_results(node),
        )
        return Arguments(args=args, kwargs=dict(kwargs), key=key)

    def run(self, node: fx.Node, arguments: Arguments) -> NodeTrace:
        """Run ``node`` forward and, where a result needs gradients, backward.

        Returns:
            The kernels of both directions.

        Raises:
            Exception: Whatever the operation raises on fake tensors.
        """
        kernels = FusedKernels() if self._fused else contextlib.nullcontext()
        with self._mode, GroupedFakes():
            return self._traced(node, arguments, {}, kernels)

    def forward(
        self, node: fx.Node, arguments: Arguments, mode: AbstractContextManager[Any]
    ) -> Forward:
        """Run ``node`` forward alone, under ``mode``.

        Raises:
            Exception: Whatever the operation raises on fake tensors.
        """
        region, copied = info(node).region, bool(info(node).writes)
        made: dict[Slot, torch.Tensor] = {}
        held: list[torch.Tensor] = []
        with self._mode, GroupedFakes(), quiet(), recorded_modes(region):
            make = slot_maker([], copy=copied, examples={}, made=made)
            args, kwargs = map_aggregate((arguments.args, arguments.kwargs), make)
            call = self._callable(node, [], held)
            with mode:
                result = call(*args, **kwargs)
        return Forward(arguments=made, weights=held, result=result)

    def run_for_real(self, node: fx.Node, arguments: Arguments) -> NodeTrace:
        """Run a module on random numbers: what it does depends on them.

        Integers are the example's where the node reads an input, otherwise zeros. Of a
        module that draws which of its layers run, the run with most kernels counts.

        Raises:
            Exception: Whatever the module raises.
        """
        examples = dict(enumerate(map(self._example, node.all_input_nodes)))
        runs = []
        for seed, draws in enumerate(EXTREMES):
            with untouched(self._graph.model):
                torch.manual_seed(seed)
                forced = ForcedDraws(draws)
                runs.append(self._traced(node, arguments, examples, forced))
        return max(runs, key=lambda run: run.forward.kernels.total())

    def _example(self, source: fx.Node) -> torch.Tensor | None:
        """Return the example's tensor if ``source`` is an input of the model."""
        inputs = list(self._graph.graph.find_nodes(op="placeholder"))
        if source not in inputs:
            return None
        found: Any = dict(zip(("args", "kwargs"), self._graph.example, strict=True))
        for step in self._graph.inputs[inputs.index(source)].path:
            found = found[step]
        return cast("torch.Tensor", found)

    def _traced(
        self,
        node: fx.Node,
        arguments: Arguments,
        examples: Mapping[int, torch.Tensor | None],
        kernels: AbstractContextManager[Any],
    ) -> NodeTrace:
        forward, backward = KernelTrace(), KernelTrace()
        live = LiveBytes(gpu=self._fused)
        facts = info(node)
        leaves: list[torch.Tensor] = []
        with quiet(), recorded_modes(facts.region):
            make = slot_maker(leaves, copy=bool(facts.writes), examples=examples)
            args, kwargs = map_aggregate((arguments.args, arguments.kwargs), make)
            call = self._callable(node, leaves)
            with live, forward, kernels:
                result = call(*args, **kwargs)
        live.restart()
        if any(meta.requires_grad for meta in facts.outputs):
            with quiet(), live, backward:
                _run_backward(result, leaves, used_results(node))
        return NodeTrace(
            forward=forward, backward=backward, backward_peak_bytes=live.peak_bytes
        )

    def _stand_in(self, source: fx.Node, position: int) -> Any:
        outputs = info(source).outputs
        if len(outputs) == 1:
            return slot_of(outputs[0], position)
        if outputs:
            return tuple(slot_of(meta, position) for meta in outputs)
        if source not in self._plain:
            self._plain[source] = self._value(source)
        return self._plain[source]

    def _value(self, source: fx.Node) -> Any:
        """Compute a node that yields no tensor: an integer, a flag, a device."""
        if source.op == "get_attr":
            return _STEERING[str(source.target)]
        arguments = self.arguments(source)
        with self._mode, torch.no_grad():
            make = slot_maker([], copy=False, examples={})
            args, kwargs = map_aggregate((arguments.args, arguments.kwargs), make)
            return self._callable(source, [])(*args, **kwargs)

    def _callable(
        self,
        node: fx.Node,
        leaves: list[torch.Tensor],
        held: list[torch.Tensor] | None = None,
    ) -> Callable[..., Any]:
        if node.op == "call_module":
            return leaf_call(self._graph, str(node.target), leaves, held)
        if node.op == "call_method":
            name = str(node.target)
            return lambda tensor, *args, **kwargs: getattr(tensor, name)(
                *args, **kwargs
            )
        return cast("Callable[..., Any]", node.target)


def _run_backward(
    result: Any, leaves: list[torch.Tensor], used: frozenset[int] | None
) -> None:
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    outputs = [
        tensor
        for position, tensor in enumerate(tensors)
        if tensor.requires_grad and (used is None or position in used)
    ]
    if not outputs or not leaves:
        return
    gradients = [torch.empty_like(output) for output in outputs]
    torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)


def _frozen(value: Any) -> Any:
    """Return something hashable that is equal for equal argument trees."""
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, slice):
        return ("slice", *map(_frozen, (value.start, value.stop, value.step)))
    if isinstance(value, torch.Tensor):
        return ByIdentity(value)
    # 1, 1.0 and True are equal but not the same argument.
    return value if isinstance(value, Slot) else (type(value), value)
