"""Observe which ATen operators run: kernels with FLOPs and bytes, and unknown ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partitioner.cost.operators import (
    ALLOCATIONS,
    GATHERS,
    UNCOUNTED,
    formula,
    operator_class,
    plain_name,
)
from partitioner.cost.shares import arguments, rate_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partitioner.cost.profiles import OperatorClass

_MATRIX, _HALF_BYTES, _LOAD_BYTES = 2, 2, 16

__all__ = ["Kernel", "KernelTrace", "dtype_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel as a roofline sees it."""

    operator_class: OperatorClass = "other"
    dtype: str = "float32"
    """Type it computes in."""
    flops: int = 0
    nbytes: int = 0
    """Bytes read and written."""
    share: float = 1.0
    """Of the rate that its class reaches on a GPU."""


class KernelTrace(TorchDispatchMode):
    """A mode that records the kernels of whatever runs inside it.

    Attributes:
        kernels: Each distinct kernel and how often it ran.
        unknown: Names of operators with no FLOP rule, and how often each ran.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[Kernel] = Counter()
        self.unknown: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and record it."""
        del types
        result = func(*args, **(kwargs or {}))
        if func.namespace != "prim" and not func.is_view:
            self._record(func, (args, kwargs), result)
        return result

    def _record(self, func: Any, inputs: tuple[Any, Any], result: Any) -> None:
        name = plain_name(func._overloadpacket)  # noqa: SLF001 (as torch's own counter)
        if name in ALLOCATIONS:
            return
        rule = formula(func._overloadpacket)  # noqa: SLF001
        flops = 0
        args, kwargs = inputs
        if rule is not None:
            flops = int(rule(*args, **(kwargs or {}), out_val=result))
        elif name not in UNCOUNTED:
            self.unknown[name] += 1
        read = [leaf for leaf in tree_leaves(inputs) if _is_tensor(leaf)]
        written = [leaf for leaf in tree_leaves(result) if _is_tensor(leaf)]
        kernel = Kernel(
            operator_class=_class_of(name, flops, [*read, *written]),
            dtype=_compute_type([*read, *written]),
            flops=flops,
            nbytes=_traffic(name, read, written),
            share=rate_share(name, arguments(func, args, kwargs or {}), read),
        )
        self.kernels[kernel] += 1


def _class_of(name: str, flops: int, tensors: Iterable[torch.Tensor]) -> OperatorClass:
    found = operator_class(name, counted=bool(flops))
    if found == "matmul" and any(map(_is_misaligned, tensors)):
        return "misaligned"
    if found == "convolution" and any(map(_is_narrow, tensors)):
        return "narrow_convolution"
    return found


def _is_misaligned(tensor: torch.Tensor) -> bool:
    """Whether rows of a 16-bit matrix do not start at multiples of 16 bytes."""
    if tensor.dim() < _MATRIX or tensor.element_size() != _HALF_BYTES:
        return False
    rows = [stride for stride in tensor.stride()[-2:] if stride != 1]
    return any(stride * _HALF_BYTES % _LOAD_BYTES for stride in rows)


def _is_narrow(tensor: torch.Tensor) -> bool:
    """Whether a 16-bit image or filter has channels that do not fill a load."""
    if tensor.dim() <= _MATRIX or tensor.element_size() != _HALF_BYTES:
        return False
    return bool(tensor.shape[1] * _HALF_BYTES % _LOAD_BYTES)


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"bfloat16"`` for ``torch.bfloat16``: profiles are keyed by name."""
    return str(dtype).removeprefix("torch.")


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)


def _compute_type(tensors: Iterable[torch.Tensor]) -> str:
    floating = (one.dtype for one in tensors if one.is_floating_point())
    return dtype_name(next(floating, torch.float32))


def _traffic(
    name: str, read: Iterable[torch.Tensor], written: Iterable[torch.Tensor]
) -> int:
    out = sum(map(_touched_bytes, written))
    if name in GATHERS:
        indices = (one for one in read if not one.is_floating_point())
        return 2 * out + sum(map(_touched_bytes, indices))
    return out + sum(map(_touched_bytes, read))


def _touched_bytes(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor; an expanded one touches its storage once."""
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes())
