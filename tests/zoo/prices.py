"""Prices of a zoo model against what others count when the model itself runs.

FLOPs forward and backward: torch's ``FlopCounterMode``. FLOPs forward: fvcore's
``FlopCountAnalysis``, which counts a multiply-add once. Bytes saved for backward: hooks
on the tensors that autograd keeps.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from fvcore.nn import FlopCountAnalysis
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from partitioner.costed import CostedGraph, NodeCost
from partitioner.graph import ModelGraph
from partitioner.verify.inputs import input_tensors
from partitioner.verify.run import call_with, tensor_leaves

__all__ = ["FVCORE_LACKS", "UNLIKE", "price_faults"]

FLOPS_TOLERANCE = 0.01
BYTES_TOLERANCE = 0.02

PAGES = (
    "a CPU's fused LSTM rounds each part of its workspace up to 4096 bytes, which hides"
    " what these few numbers take"
)
CHOSEN = (
    "what to recompute is the plan's choice: the pipeline keeps what the model's own"
    " checkpointing drops, and does not compute it again"
)
UNLIKE = {
    ("recomputes by itself", "backward_flops"): CHOSEN,
    ("recomputes by itself", "saved_bytes"): CHOSEN,
    ("lstm", "saved_bytes"): PAGES,
    ("bidirectional lstm", "saved_bytes"): PAGES,
}
"""Entry and field → why the original keeps or computes something else."""

FVCORE_LACKS = {
    "packed sequences": "the recurrence",
    "lstm": "the recurrence",
    "gru": "the recurrence",
    "bidirectional lstm": "the recurrence",
    "cached parametrization": "it traces the model, which refuses",
    "recomputes by itself": "it traces the model, which refuses",
    "compiled part": "it traces the model, which refuses",
    "vmap": "it counts a batched product once, not once for each in the batch",
    "vector quantizer": "distances, and the product that a .data write hides",
}
"""Entry → what fvcore cannot count of it."""


def price_faults(name: str, costed: CostedGraph, model: nn.Module) -> list[str]:
    """Run the original model of an entry once more; say where its price is wrong.

    Args:
        name: Name of the entry.
        costed: Its recording, priced on a CPU.
        model: The model, in train mode, caches off; its gradients are filled in.
    """
    _keep_layers(model)
    graph, found = costed.graph, costed.total
    expected = _counted(graph, model)
    faults = _differences(name, found, expected)
    if name not in FVCORE_LACKS:
        flops = 2 * _by_fvcore(graph, model)
        if not math.isclose(found.forward_flops, flops, rel_tol=FLOPS_TOLERANCE):
            faults.append(f"{found.forward_flops} FLOPs forward, by fvcore {flops}")
    return [f"price: {fault}" for fault in faults]


def _keep_layers(model: nn.Module) -> None:
    """Switch LayerDrop off: a price is that of all layers."""
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            if hasattr(holder, "layerdrop"):
                holder.layerdrop = 0.0  # type: ignore[union-attr]


def _differences(name: str, found: NodeCost, expected: NodeCost) -> list[str]:
    limits = {
        "forward_flops": FLOPS_TOLERANCE,
        "backward_flops": FLOPS_TOLERANCE,
        "saved_bytes": BYTES_TOLERANCE,
    }
    faults = []
    for field, limit in limits.items():
        ours, theirs = getattr(found, field), getattr(expected, field)
        equal = math.isclose(ours, theirs, rel_tol=limit)
        reason = UNLIKE.get((name, field))
        if equal and reason:
            faults.append(f"{field} is right; it was not, because {reason}")
        elif not equal and not reason:
            faults.append(f"{field} is {ours}, by torch {theirs}")
    return faults


# -- torch ----------------------------------------------------------------------------


def _counted(graph: ModelGraph, model: nn.Module) -> NodeCost:
    args, kwargs = call_with(graph, [x.clone() for x in input_tensors(graph, None)])
    kept = Kept(model)
    torch.manual_seed(1)
    with FlopCounterMode(display=False, custom_mapping=LACKING) as counter:
        with saved_tensors_hooks(kept.keep, lambda tensor: tensor), _quiet_compiler():
            output = model(*args, **kwargs)
        forward = counter.get_total_flops()
        roots = [tensor for tensor in tensor_leaves(output) if tensor.requires_grad]
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return NodeCost(
        forward_flops=forward,
        backward_flops=counter.get_total_flops() - forward,
        saved_bytes=kept.nbytes,
    )


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Let a compiled part be: the counter's hooks on all modules only name calls."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)
        yield


class Kept:
    """What autograd keeps: each memory once, without weights and buffers."""

    def __init__(self, model: nn.Module) -> None:
        weights = (*model.parameters(), *model.buffers())
        self._weights = {tensor.untyped_storage().data_ptr() for tensor in weights}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._storages[storage.data_ptr()] = storage  # alive, so no place twice
        return tensor

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self._storages.values())


def _raw(count: Callable[..., int]) -> Callable[..., int]:
    """Have the counter hand over tensors instead of shapes."""

    def counted(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return count(*args, **kwargs)

    counted._get_raw = True  # type: ignore[attr-defined]
    return counted


def _lstm(x: Tensor, w_input: Tensor, w_state: Tensor, *_: Any, **__: Any) -> int:
    return 2 * x.shape[0] * x.shape[1] * (w_input.numel() + w_state.numel())


def _lstm_backward(x: Tensor, w_input: Tensor, w_state: Tensor, *_: Any) -> int:
    first_state = 2 * x.shape[1] * w_state.numel()  # zero: it needs no gradient
    return 2 * _lstm(x, w_input, w_state) - first_state


_aten = torch.ops.aten
LACKING: dict[Any, Callable[..., int]] = {
    _aten.mv: _raw(lambda matrix, *_, **__: 2 * matrix.numel()),
    _aten.dot: _raw(lambda left, *_, **__: 2 * left.numel()),
    _aten.vdot: _raw(lambda left, *_, **__: 2 * left.numel()),
    _aten._grouped_mm: _raw(lambda a, b, *_, **__: 2 * a.numel() * b.shape[-1]),
    _aten._cdist_forward: _raw(lambda a, b, *_, **__: 2 * a.numel() * b.shape[-2]),
    _aten.mkldnn_rnn_layer: _raw(_lstm),
    _aten.mkldnn_rnn_layer_backward: _raw(_lstm_backward),
    # The CPU's name of what torch's counter knows by that of the GPU.
    _aten._scaled_dot_product_flash_attention_for_cpu: _raw(
        flop_registry[_aten._scaled_dot_product_flash_attention]
    ),
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _raw(
        flop_registry[_aten._scaled_dot_product_flash_attention_backward]
    ),
}
"""Operators that torch's counter takes to be free."""


# -- fvcore ---------------------------------------------------------------------------

PRODUCTS = ("addmm", "bmm", "conv", "einsum", "linear", "matmul")
"""What fvcore counts multiply-adds of; of the others it counts elements."""


class _Positional(nn.Module):
    """The model as fvcore takes it: tensors in, tensors out."""

    def __init__(self, graph: ModelGraph, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.graph = graph

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = call_with(self.graph, [tensor.clone() for tensor in tensors])
        return tuple(tensor_leaves(self.model(*args, **kwargs)))


def _by_fvcore(graph: ModelGraph, model: nn.Module) -> float:
    """Return the multiply-adds of one forward."""
    tensors = tuple(input_tensors(graph, None))
    analysis = FlopCountAnalysis(_Positional(graph, model), tensors)
    analysis.unsupported_ops_warnings(enabled=False)
    analysis.uncalled_modules_warnings(enabled=False)
    analysis.tracer_warnings("none")
    for operator, handle in HANDLES.items():
        analysis.set_op_handle(f"aten::{operator}", handle)
    logging.disable(logging.WARNING)
    try:
        found = analysis.by_operator()
    finally:
        logging.disable(logging.NOTSET)
    return sum(found[name] for name in (*PRODUCTS, *HANDLES))


def _sizes(values: Sequence[Any]) -> list[list[int]]:
    return [value.type().sizes() for value in values]


def _attention(inputs: Sequence[Any], _: Any) -> int:
    query, key, value = _sizes(inputs[:3])
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _added_product(inputs: Sequence[Any], _: Any) -> int:
    _added, left, right = _sizes(inputs[:3])
    return math.prod(left) * right[-1]


def _grouped_product(inputs: Sequence[Any], _: Any) -> int:
    left, right = _sizes(inputs[:2])  # each row meets one group
    return math.prod(left) * right[-1]


def _matrix_vector(inputs: Sequence[Any], _: Any) -> int:
    return math.prod(_sizes(inputs[:1])[0])


HANDLES = {
    "scaled_dot_product_attention": _attention,
    "baddbmm": _added_product,
    "_grouped_mm": _grouped_product,
    "mv": _matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
}
"""Products that fvcore passes over, in its own terms."""
