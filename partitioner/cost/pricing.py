"""Price every node: ModelGraph → CostedGraph. Equal nodes are priced once."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import fx, nn
from torch.utils._pytree import tree_leaves

from partitioner.cost.failures import FAILURES
from partitioner.cost.kernels import Kernel, dtype_name
from partitioner.cost.openings import estimated_openings
from partitioner.cost.replay import Arguments, NodeTrace, Replay
from partitioner.cost.rnn import rnn_kernels
from partitioner.cost.roofline import kernels_s
from partitioner.cost.saved import saved_bytes
from partitioner.cost.seconds import with_seconds
from partitioner.cost.slots import Slot
from partitioner.cost.sums import accumulations, result_sums, trains
from partitioner.cost.units import takes_part
from partitioner.cost.weights import read_weights
from partitioner.cost.work import RUNS
from partitioner.costed import CostedGraph, NodeCost, Unpriced
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partitioner.cost.measurements import Measurements
    from partitioner.cost.profiles import DeviceProfile
    from partitioner.graph import ModelGraph

__all__ = ["price"]

_Kernels = Counter[Kernel]
_LARGEST_REAL_BYTES = 2**28
"""Weights of a module that is run on random numbers to be priced."""
_NO_RULE = "no FLOP rule: priced by the bytes it moves"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """What nodes with one key have in common."""

    cost: NodeCost
    unknown: Mapping[str, int]
    """Operators that have no price, and how often they ran."""
    reason: str = _NO_RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """What one run of a node launched."""

    forward: _Kernels
    backward: _Kernels
    unknown: Mapping[str, int]
    peak_bytes: int = 0

    @classmethod
    def of(cls, trace: NodeTrace) -> _Runs:
        return cls(
            forward=trace.forward.kernels,
            backward=trace.backward.kernels,
            unknown=trace.forward.unknown + trace.backward.unknown,
            peak_bytes=trace.backward_peak_bytes,
        )


def price(
    graph: ModelGraph,
    *,
    profile: DeviceProfile,
    measurements: Measurements | None = None,
) -> CostedGraph:
    """Price every node of a recorded model on one device.

    FLOPs and bytes come from running each distinct node once on fake tensors, forward
    and backward; seconds from what was measured, or else from a roofline of the
    device. Weights, sizes, constants and the parts of one result cost nothing.

    Args:
        graph: The recorded model.
        profile: The device.
        measurements: Timings of the model's operations and blocks.

    Returns:
        The priced graph; operators without a price are in ``unpriced``.
    """
    pricer = _Pricer(graph, profile)
    costs = {node: pricer.price(node) for node in graph.graph.nodes}
    costed = CostedGraph(
        graph=graph,
        costs=costs,
        unpriced=pricer.unpriced(),
        profile=profile,
        openings=estimated_openings(graph, costs),
    )
    return with_seconds(costed, measurements) if measurements else costed


class _Pricer:
    """Prices nodes in program order and keeps what it learnt."""

    def __init__(self, graph: ModelGraph, profile: DeviceProfile) -> None:
        self._graph = graph
        self._profile = profile
        self._weights = read_weights(graph)
        fused = profile.kind == "gpu"
        self._replay = Replay(graph, fused=fused)
        self._saved = saved_bytes(graph, self._replay, fused=fused)
        self._known: dict[object, _Price] = {}
        self._unpriced: dict[tuple[str, str], Unpriced] = {}

    def price(self, node: fx.Node) -> NodeCost:
        facts = info(node)
        saved = self._saved[node]
        out = sum(meta.nbytes for meta in facts.outputs)
        if facts.kind == "input":
            return NodeCost(output_bytes=out, saved_bytes=saved)
        if facts.kind not in RUNS or takes_part(node):
            return NodeCost(saved_bytes=saved)
        found = self._common(node)
        self._report(node, found)
        weights = self._weights[node]
        sums = self._gradient_sums(node)
        cost = found.cost
        return replace(
            cost,
            backward_s=cost.backward_s + kernels_s(self._profile, sums),
            backward_bytes=cost.backward_bytes + _nbytes(sums),
            output_bytes=out,
            saved_bytes=saved,
            parameter_bytes=sum(w.nbytes for w in weights if w.is_parameter),
            buffer_bytes=sum(w.nbytes for w in weights if not w.is_parameter),
        )

    def unpriced(self) -> tuple[Unpriced, ...]:
        return tuple(self._unpriced.values())

    def _common(self, node: fx.Node) -> _Price:
        """Return the price that all nodes like ``node`` share."""
        try:
            arguments = self._replay.arguments(node)
            known = self._known.get(arguments.key)
        except FAILURES as error:  # a user's object may refuse to be hashed
            return self._by_bytes(node, error)
        if known is None:
            known = self._run(node, arguments)
            self._known[arguments.key] = known
        return known

    def _run(self, node: fx.Node, arguments: Arguments) -> _Price:
        try:
            found = self._runs(node, arguments)
        except FAILURES as error:  # operators may fail on fake tensors
            return self._for_real(node, arguments, error)
        return self._price(found)

    def _for_real(
        self, node: fx.Node, arguments: Arguments, error: Exception
    ) -> _Price:
        """Price a module by a run on random numbers, if it is small enough for one."""
        size = sum(weight.nbytes for weight in self._weights[node])
        if node.op != "call_module" or size > _LARGEST_REAL_BYTES:
            return self._by_bytes(node, error)
        try:
            trace = self._replay.run_for_real(node, arguments)
        except FAILURES:  # it may depend on what the numbers are
            return self._by_bytes(node, error)
        return self._price(_Runs.of(trace))

    def _price(self, found: _Runs) -> _Price:
        cost = NodeCost(
            forward_flops=_flops(found.forward),
            backward_flops=_flops(found.backward),
            forward_s=kernels_s(self._profile, found.forward),
            backward_s=kernels_s(self._profile, found.backward),
            forward_bytes=_nbytes(found.forward),
            backward_bytes=_nbytes(found.backward),
            transient_bytes=found.peak_bytes,
        )
        return _Price(cost=cost, unknown=found.unknown)

    def _runs(self, node: fx.Node, arguments: Arguments) -> _Runs:
        module = self._leaf(node)
        source = next(iter(arguments.args), None)
        if isinstance(module, nn.RNNBase) and isinstance(source, Slot):
            states = tree_leaves((arguments.args[1:], arguments.kwargs))
            learns = any(isinstance(s, Slot) and s.requires_grad for s in states)
            forward, backward = rnn_kernels(
                module, source, self._graph.dtype, state_learns=learns
            )
            if not trains(node):
                backward = Counter()
            return _Runs(forward=forward, backward=backward, unknown={})
        return _Runs.of(self._replay.run(node, arguments))

    def _leaf(self, node: fx.Node) -> nn.Module | None:
        if node.op != "call_module":
            return None
        return self._graph.model.get_submodule(str(node.target))

    def _by_bytes(self, node: fx.Node, error: Exception) -> _Price:
        """Price what cannot be run by its bytes, a module by its weights as well.

        Each weight is taken to meet each row of the first argument once.
        """
        weights = sum(weight.nbytes for weight in self._weights[node])
        read = sum(_output_bytes(source) for source in node.all_input_nodes)
        flops, dtype = self._flops_of_weights(node)
        kernel = Kernel(
            operator_class="matmul" if flops else "other",
            dtype=dtype,
            flops=flops,
            nbytes=weights + read + _output_bytes(node),
        )
        moved: _Kernels = Counter({kernel: 1})
        seconds = kernels_s(self._profile, moved)
        back = 2 if trains(node) else 0
        cost = NodeCost(
            forward_flops=flops,
            backward_flops=back * flops,
            forward_s=seconds,
            backward_s=back * seconds,
            forward_bytes=_nbytes(moved),
            backward_bytes=back * _nbytes(moved),
        )
        module = self._leaf(node)
        name = type(module).__name__ if module is not None else _target_name(node)
        reason = f"cannot run on fake tensors ({type(error).__name__}: {error})"
        reason = reason.splitlines()[0]
        if flops:
            reason += "; priced as if every weight met every row of its input"
        return _Price(cost=cost, unknown={name: 1}, reason=reason)

    def _flops_of_weights(self, node: fx.Node) -> tuple[int, str]:
        """Return 2·weights·rows, an upper bound for what routes rows, and a dtype."""
        first = next(
            (meta for source in node.all_input_nodes for meta in info(source).outputs),
            None,
        )
        module = self._leaf(node)
        if module is None or first is None or not first.shape:
            return 0, dtype_name(self._graph.dtype)
        rows = math.prod(first.shape[:-1])
        numbers = sum(parameter.numel() for parameter in module.parameters())
        return 2 * numbers * rows, dtype_name(self._graph.dtype)

    def _report(self, node: fx.Node, found: _Price) -> None:
        for name, count in found.unknown.items():
            earlier = self._unpriced.get((name, found.reason))
            if earlier is None:
                earlier = Unpriced(
                    operator=name,
                    count=0,
                    module=info(node).module,
                    source=info(node).source,
                    reason=found.reason,
                )
            self._unpriced[name, found.reason] = replace(
                earlier, count=earlier.count + count
            )

    def _gradient_sums(self, node: fx.Node) -> _Kernels:
        """Return the kernels that add gradients up, of parameters and of results."""
        if not trains(node):
            return Counter()
        return accumulations(self._weights[node]) + result_sums(node)


def _output_bytes(node: fx.Node) -> int:
    return sum(meta.nbytes for meta in info(node).outputs)


def _flops(kernels: _Kernels) -> int:
    return sum(kernel.flops * count for kernel, count in kernels.items())


def _nbytes(kernels: _Kernels) -> int:
    return sum(kernel.nbytes * count for kernel, count in kernels.items())


def _target_name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "call")
