"""Observe how much memory is alive at once among what some code allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


_aten: Any = torch.ops.aten


class LiveBytes(TorchDispatchMode):
    """A mode that follows the storages which operators inside it allocate.

    Args:
        gpu: Count as well what the kernels of a GPU need for themselves alone.

    Attributes:
        peak_bytes: The most that was alive right after an operator, beyond what was
            alive at the last :meth:`restart`.
    """

    def __init__(self, *, gpu: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu = gpu
        self.peak_bytes = 0
        self._before_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def restart(self) -> None:
        """Count from what is alive now; what of that is freed makes room for more."""
        self.peak_bytes = 0
        self._before_bytes = self._alive_bytes()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and note what it allocated."""
        del types
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}  # noqa: SLF001 - torch's own key of a storage
        self._forget_freed()
        for storage in _storages(result):
            key = storage._cdata  # noqa: SLF001
            if key not in given and key not in self._alive:
                self._alive[key] = StorageWeakRef(storage), storage.nbytes()
        more = self._alive_bytes() - self._before_bytes
        if self._gpu and func is _aten._softmax_backward_data.default:  # noqa: SLF001 - an operator
            # aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: first a
            # tensor of its own for the gradient times the result.
            more += args[0].nbytes
        self.peak_bytes = max(self.peak_bytes, more)
        return result

    def _alive_bytes(self) -> int:
        self._forget_freed()
        return sum(nbytes for _, nbytes in self._alive.values())

    def _forget_freed(self) -> None:
        self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [leaf.untyped_storage() for leaf in leaves]
