"""FLOPs of operators that torch's counter does not know; one multiply-add is two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

__all__ = ["FORMULAS", "for_grouped_heads", "rnn_layer_flops"]


def rnn_layer_flops(steps: int, gates: int, inputs: int, hidden: int) -> int:
    """Return the forward FLOPs of one recurrent layer in one direction.

    Each position multiplies its input by a (gates·hidden, inputs) matrix and the state
    before it by a (gates·hidden, hidden) matrix (Hochreiter and Schmidhuber, 1997:
    four gates; Cho et al., 2014: three). Backward is twice that: the gradients of both
    operands of both products.

    Args:
        steps: Positions times batch.
        gates: 4 for LSTM, 3 for GRU, 1 for a plain recurrence.
        inputs: Width of the layer's input.
        hidden: Width of the state that is fed back.
    """
    return 2 * steps * gates * hidden * (inputs + hidden)


def _mkldnn_rnn(x: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor) -> int:
    gates = w_hh.shape[0] // w_hh.shape[1]
    steps = x.shape[0] * x.shape[1]
    return rnn_layer_flops(steps, gates, w_ih.shape[1], w_hh.shape[1])


def _rnn(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
    return _mkldnn_rnn(x, w_ih, w_hh)


def _rnn_backward(x: Any, w_ih: Any, w_hh: Any, *_: Any, **__: Any) -> int:
    return 2 * _mkldnn_rnn(x, w_ih, w_hh)


def _counted(count: Callable[..., int], *tensors: Any) -> int:
    return count(*(tensor.shape for tensor in tensors))


def _sdpa(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _counted(sdpa_flop_count, q, k, v)


def _sdpa_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _counted(sdpa_backward_flop_count, grad, q, k, v)


def for_grouped_heads(name: str, rule: Callable[..., int]) -> Callable[..., int]:
    """Return an attention's rule that also counts keys shared by several queries.

    Torch's own counter refused such shapes up to 2.11; each query meets its key's
    group as if it had a copy.

    Args:
        name: The operator's plain name.
        rule: Torch's rule, used where every query has its own keys.
    """
    first = 1 if name.endswith("_backward") else 0
    count = sdpa_backward_flop_count if first else sdpa_flop_count

    def counted(*args: Any, **kwargs: Any) -> int:
        q, k, v = args[first : first + 3]
        if q.shape[1] == k.shape[1]:
            return rule(*args, **kwargs)
        shapes = [(x.shape[0], q.shape[1], *x.shape[2:]) for x in (q, k, v)]
        gradient = [args[0].shape] if first else []
        return int(count(*gradient, *shapes))

    return counted


def _matrix_vector(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    del vector
    return 2 * int(matrix.numel())


def _add_matrix_vector(_bias: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * int(matrix.numel())


def _dot(left: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel())


def _outer(_bias: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel() * right.numel())


def _add_batched(_bias: Any, left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel() * right.shape[-1])


def _trilinear(*args: Any, **_: Any) -> int:
    """Price ``nn.Bilinear``: two products over the full (batch, out, in, in) grid."""
    return 4 * int(args[0].shape[0] * args[1].numel())


def _grouped(left: Any, right: Any, *_: Any, **__: Any) -> int:
    """Price one product per group; each row (or column) belongs to one group only."""
    if left.dim() > right.dim():
        return 2 * int(left.shape[-2] * right.numel())
    return 2 * int(left.numel() * right.shape[-1])


def _distances(left: Any, right: Any, *_: Any, **__: Any) -> int:
    return 2 * int(left.numel() * right.shape[-2])


FORMULAS: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _sdpa,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _sdpa_backward,
    "_scaled_dot_product_fused_attention_overrideable": _sdpa,
    "_scaled_dot_product_fused_attention_overrideable_backward": _sdpa_backward,
    "mkldnn_rnn_layer": _rnn,
    "mkldnn_rnn_layer_backward": _rnn_backward,
    "mv": _matrix_vector,
    "addmv": _add_matrix_vector,
    "dot": _dot,
    "vdot": _dot,
    "addr": _outer,
    "addbmm": _add_batched,
    "_grouped_mm": _grouped,
    "_trilinear": _trilinear,
    "_euclidean_dist": _distances,
    "_cdist_forward": _distances,
}
"""Plain operator name → arguments → FLOPs."""
