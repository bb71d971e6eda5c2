"""Bytes that autograd keeps for each node, as the target device would.

The recording ran on fake CPU tensors. Where an accelerator fuses (``cost.fused``), and
for recurrences, whose fused kernels hide what they keep, the node is looked at again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils._pytree import tree_leaves

from partitioner.cost.failures import FAILURES
from partitioner.cost.fused import FusedKernels
from partitioner.cost.rnn import rnn_saved_bytes
from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from partitioner.cost.replay import Arguments, Replay
    from partitioner.graph import ModelGraph

__all__ = ["saved_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What one node keeps."""

    arguments: frozenset[int] = frozenset()
    """Positions of the nodes it reads whose results it keeps."""
    results: frozenset[int] = frozenset()
    """Positions of its own results that it keeps."""
    inner_bytes: int = 0
    """What it makes for backward alone: masks, statistics, workspaces."""


def saved_bytes(
    graph: ModelGraph, replay: Replay, *, fused: bool
) -> Mapping[fx.Node, int]:
    """Return the bytes that autograd keeps first because of each node.

    Each memory counts once, at the first node that keeps it; weights never.

    Args:
        graph: The recorded model.
        replay: Runs its nodes.
        fused: Whether the device fuses attention, dropout and recurrences.
    """
    return _Walk(graph, replay, fused=fused).run()


class _Walk:
    """Goes through a graph in program order."""

    def __init__(self, graph: ModelGraph, replay: Replay, *, fused: bool) -> None:
        self._graph = graph
        self._replay = replay
        self._fused = fused
        self._known: dict[object, _Kept | None] = {}
        self._sizes = _storage_sizes(graph)
        self._same = _views_of_attention(graph) if fused else {}
        self._seen = {
            meta.storage
            for node in graph.graph.nodes
            if info(node).kind == "weight"
            for meta in info(node).outputs
        }

    def run(self) -> dict[fx.Node, int]:
        return {node: self._node(node) for node in self._graph.graph.nodes}

    def _node(self, node: fx.Node) -> int:
        kept = self._kept(node)
        if kept is None:
            return self._once(dict(info(node).saved)) + self._statistics(node)
        read = [info(source).outputs for source in node.all_input_nodes]
        metas = [meta for at in kept.arguments for meta in read[at]]
        metas += [info(node).outputs[at] for at in kept.results]
        found = self._once({meta.storage: self._sizes[meta.storage] for meta in metas})
        return found + kept.inner_bytes

    def _statistics(self, node: fx.Node) -> int:
        """Return what a layer norm's statistics take more than on a CPU.

        A GPU keeps mean and deviation of each row in float32, a CPU in the type of
        the weights.
        """
        layer = self._leaf(node)
        if isinstance(layer, nn.LayerNorm):
            dims = len(layer.normalized_shape)
        elif node.target is F.layer_norm:
            dims = len(_argument(node, 1, "normalized_shape"))
        else:
            return 0
        if not (self._fused and info(node).saved):
            return 0
        meta = info(node).outputs[0]
        rows = math.prod(meta.shape[:-dims])
        return 2 * rows * max(0, torch.float32.itemsize - meta.dtype.itemsize)

    def _once(self, storages: Mapping[int, int]) -> int:
        named = {self._same.get(at, at): nbytes for at, nbytes in storages.items()}
        new = {at: nbytes for at, nbytes in named.items() if at not in self._seen}
        self._seen.update(new)
        return sum(new.values())

    def _kept(self, node: fx.Node) -> _Kept | None:
        """Return what a node keeps where that is not what was recorded."""
        if info(node).kind not in {"compute", "late"} or not info(node).saved:
            return None
        module = self._leaf(node)
        if isinstance(module, nn.RNNBase):
            return self._recurrence(node, module)
        if not self._fused or not _may_fuse(node, module):
            return None
        try:
            arguments = self._replay.arguments(node)
            if arguments.key not in self._known:
                self._known[arguments.key] = self._observed(node, arguments)
            return self._known[arguments.key]
        except FAILURES:  # it may refuse fake tensors: what was recorded holds
            return None

    def _leaf(self, node: fx.Node) -> nn.Module | None:
        if node.op != "call_module":
            return None
        return self._graph.model.get_submodule(str(node.target))

    def _recurrence(self, node: fx.Node, module: nn.RNNBase) -> _Kept | None:
        source = info(node.all_input_nodes[0]).outputs[0]
        nbytes = rnn_saved_bytes(
            module, source.shape, self._graph.dtype, fused=self._fused
        )
        if nbytes is None:
            return None
        return _Kept(
            arguments=frozenset(range(len(node.all_input_nodes))),
            results=frozenset(range(len(info(node).outputs))),
            inner_bytes=nbytes,
        )

    def _observed(self, node: fx.Node, arguments: Arguments) -> _Kept | None:
        """Run ``node`` with fused kernels; None if it uses none."""
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept.setdefault(_memory(storage), storage)
            return tensor

        mode = FusedKernels()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            ran = self._replay.forward(node, arguments, mode)
        if not mode.used:
            return None
        weights = {_memory(held.untyped_storage()) for held in ran.weights}
        slots = {
            _memory(tensor.untyped_storage()): slot.position
            for slot, tensor in ran.arguments.items()
        }
        results = {
            _memory(leaf.untyped_storage()): position
            for position, leaf in enumerate(tree_leaves(ran.result))
            if isinstance(leaf, torch.Tensor)
        }
        named = {**results, **slots}
        return _Kept(
            arguments=frozenset(slots[at] for at in kept if at in slots),
            results=frozenset(
                results[at] for at in kept if at in results and at not in slots
            ),
            inner_bytes=sum(
                storage.nbytes()
                for at, storage in kept.items()
                if at not in named and at not in weights
            ),
        )


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs[name]


def _memory(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)  # noqa: SLF001 - data_ptr is 0 for every fake


def _may_fuse(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether running the node again could show a fused kernel."""
    target: Any = node.target
    if isinstance(module, nn.Dropout | nn.MultiheadAttention):
        return True
    if module is not None:  # torch's other layers are one kernel on every device
        return not type(module).__module__.startswith("torch.nn")
    return node.op == "call_function" and getattr(target, "__name__", "") in {
        "dropout",
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
    }


def _views_of_attention(graph: ModelGraph) -> dict[int, int]:
    """Return storages that are copies on a CPU → the attention's that they view.

    Fused kernels lay their result out as (batch, positions, heads, width), so that
    joining the heads moves nothing; separate products on a CPU do not.
    """
    attentions: dict[int, tuple[int, ...]] = {}
    same: dict[int, int] = {}
    for node in graph.graph.nodes:
        if node.target is F.scaled_dot_product_attention and len(_shape(node)) == _DIMS:
            *batch, heads, length, width = _shape(node)
            attentions[_storage(node)] = (*batch, length, heads, width)
        elif node.target in _JOINS and info(node).outputs:
            source = node.all_input_nodes[0]
            if attentions.get(_storage(source)) == _shape(source):
                same[_storage(node)] = _storage(source)
    return same


_JOINS = frozenset({"contiguous", "flatten", "reshape", torch.flatten, torch.reshape})


_DIMS = 4
"""Of attention with heads: (batch, heads, positions, width)."""


def _storage(node: fx.Node) -> int:
    return info(node).outputs[0].storage


def _shape(node: fx.Node) -> tuple[int, ...]:
    return info(node).outputs[0].shape


def _storage_sizes(graph: ModelGraph) -> dict[int, int]:
    """Return the bytes of each storage: as recorded, else of its first tensor."""
    sizes: dict[int, int] = {}
    for node in graph.graph.nodes:
        for meta in info(node).outputs:
            sizes.setdefault(meta.storage, meta.nbytes)
    for node in graph.graph.nodes:
        sizes.update(info(node).saved)
    return sizes
