"""Run attention and dropout as accelerators do: each is one kernel.

What autograd keeps differs with it. A CPU keeps a dropout mask in the type of the
numbers, and with dropout the whole matrix of attention weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["FusedKernels"]

_aten: Any = torch.ops.aten
_DIMS = 4
"""Fused attention takes (batch, heads, positions, width)."""
_ALIGNMENT = 8
"""Elements of a head that kernels which take a mask want to be a multiple of."""
_HALF = frozenset({torch.float16, torch.bfloat16})


class FusedKernels(TorchFunctionMode):
    """A mode that replaces what an accelerator fuses by torch's own fused operators.

    Attributes:
        used: Whether anything was replaced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the fused form of ``func``, or ``func`` itself if there is none."""
        del types
        kwargs = kwargs or {}
        fused = _FUSED.get(func)
        result = fused(*args, **kwargs) if fused else None
        if result is None:
            return func(*args, **kwargs)
        self.used = True
        return result


def _dropout(
    x: Tensor,
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002 (torch's own signature)
    inplace: bool = False,  # noqa: FBT001, FBT002 (likewise)
) -> Tensor | None:
    # torch's own conditions, in aten/src/ATen/native/Dropout.cpp.
    if inplace or not training or not 0 < p < 1 or not x.numel():
        return None
    result: Tensor = torch.native_dropout(x, p, train=True)[0]
    return result


def _attention(  # noqa: PLR0917 (torch's own signature)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 (likewise)
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return what the kernel that a GPU chooses returns.

    The choice was read off an H200 under torch 2.11: half precision without a mask runs
    a flash kernel (any width of a head), with a mask it needs an aligned width; float32
    runs the memory-efficient kernel, but not for grouped heads. The rest is products in
    float32, also where the mask gets a gradient (a position bias that learns).
    """
    query, key, value = (_as_autocast(x) for x in (query, key, value))
    bias = _bias(attn_mask, query, key)
    fused = query.dim() == _DIMS and query.dtype in {*_HALF, torch.float32}
    half, width = query.dtype in _HALF, query.shape[-1]
    one_width = width == value.shape[-1]
    grouped = enable_gqa and query.shape[1] != key.shape[1]
    learns = bias is not None and bias.requires_grad
    found: tuple[Tensor, ...]
    if fused and half and bias is None and one_width:
        call = _aten._scaled_dot_product_flash_attention  # noqa: SLF001 (an operator)
        found = call(query, key, value, dropout_p, is_causal, scale=scale)
    elif fused and not grouped and not learns and not (half and width % _ALIGNMENT):
        call = _aten._scaled_dot_product_efficient_attention  # noqa: SLF001 (likewise)
        found = call(query, key, value, bias, True, dropout_p, is_causal, scale=scale)
    else:
        if grouped:
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        if is_causal:
            bias = _causal(query, key)
        return _products(query, key, value, bias, dropout_p, scale)
    return found[0]


def _products(  # noqa: PLR0917 (likewise)
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    scale: float | None,
) -> Tensor:
    """Return attention as torch's own products compute it: half precision in float32.

    Step by step, so that its dropout is the accelerator's.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query.to(wide) * root) @ (key.to(wide) * root).transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    weights = torch.softmax(scores, -1)
    if bias is not None:
        _blank_unseen(scores, weights)
    if dropout_p:
        weights = torch.native_dropout(weights, dropout_p, train=True)[0]
    return (weights @ value.to(wide)).to(query.dtype)


@torch.no_grad()
def _blank_unseen(scores: Tensor, weights: Tensor) -> None:
    """Run the passes in which torch blanks rows that see nothing; it keeps no more."""
    unseen = (scores == -math.inf).all(-1, keepdim=True)
    torch.where(unseen, 0.0, weights)


def _causal(query: Tensor, key: Tensor) -> Tensor:
    shape = query.shape[-2], key.shape[-2]
    return query.new_zeros(shape).masked_fill(
        torch.ones(shape, dtype=torch.bool, device=query.device).triu(1), -math.inf
    )


def _as_autocast(x: Tensor) -> Tensor:
    enabled = torch.is_autocast_enabled("cpu") and x.is_floating_point()
    return x.to(torch.get_autocast_dtype("cpu")) if enabled else x


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return the mask as the kernel takes it; one of booleans becomes numbers."""
    if mask is None:
        return None
    shape = (*query.shape[:-1], key.shape[-2])
    return _as_autocast(mask.to(query.dtype)).expand(shape)


_FUSED: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.scaled_dot_product_attention: _attention,
}
