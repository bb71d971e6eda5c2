"""Shapes of grouped matrix products in the dtypes that torch's fakes refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["GROUPED", "GroupedFakes"]

GROUPED = frozenset({"grouped_mm", "_grouped_mm"})
"""Plain names of the functions that need :class:`GroupedFakes`."""

REFUSED = frozenset({torch.float32, torch.float16})
"""What kernels take and torch's fake kernel, which knows bfloat16 only, does not."""
ALIGNMENT_BYTES = 16
"""Rows of a result start at multiples of this."""
BATCHED = 3
"""Dimensions of an operand that holds a matrix for each group."""


class GroupedFakes(TorchDispatchMode):
    """Answers for ``torch._grouped_mm`` on fake tensors: one product for each group.

    With G groups, (M, K) by (G, K, N) gives (M, N), rows in groups; (G, M, K) by (K, N)
    gives (M, N), columns in groups; (M, K) by (K, N) gives (G, M, N), K in groups;
    (G, M, K) by (G, K, N) is a batched product.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Make the result, or leave it to torch."""
        if func is _operator() and _is_refused(*args[:2]):
            left, right, *more = args
            offsets = more[0] if more else (kwargs or {}).get("offs")
            return _result(left, right, offsets)
        return func(*args, **(kwargs or {}))


def _operator() -> Any:
    packet = getattr(torch.ops.aten, "_grouped_mm", None)
    return getattr(packet, "default", None)


def _is_refused(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether only torch's fake kernel objects; other faults are the user's."""
    return (
        left.dtype == right.dtype
        and left.dtype in REFUSED
        and {left.dim(), right.dim()} <= {BATCHED - 1, BATCHED}
        and left.shape[-1] == right.shape[-2]
    )


def _result(
    left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None
) -> torch.Tensor:
    rows, columns = left.shape[-2], right.shape[-1]
    step = ALIGNMENT_BYTES // left.element_size()
    stride = -(-columns // step) * step
    if left.dim() != right.dim():
        return left.new_empty_strided((rows, columns), (stride, 1))
    groups = left.shape[0] if left.dim() == BATCHED or offsets is None else len(offsets)
    return left.new_empty_strided((groups, rows, columns), (rows * stride, stride, 1))
