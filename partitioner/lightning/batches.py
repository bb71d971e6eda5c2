"""A batch of Lightning's → named tensors → the micro-batches of one step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import OptionError, RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BatchLayout", "MicroBatch", "digest"]


class MicroBatch(dict[str, Any]):
    """The leaves of a micro-batch by name.

    Args:
        leaves: Tensors, and what else the batch holds.
        samples: How many of the batch's samples it has; 0: it only fills up, and does
            not count.
    """

    def __init__(self, leaves: Mapping[str, Any], samples: int) -> None:
        super().__init__(leaves)
        self.samples = samples


class BatchLayout:
    """How batches are built: what the first one was built like.

    Args:
        batch: Tensors in any nesting of tuples, lists and dicts; every tensor's first
            dimension is the samples.

    Raises:
        OptionError: There is no tensor in it.
    """

    def __init__(self, batch: Any) -> None:
        self._kind = type(batch) if _is_foreign_mapping(batch) else None
        paths, self._spec = pytree.tree_flatten_with_path(_plain(batch))
        self._names = _named([path for path, _ in paths])
        if not any(isinstance(leaf, Tensor) for _, leaf in paths):
            raise OptionError(
                f"a batch is a {type(batch).__name__} in which no tensor is found",
                hint="let the loader give tensors, tuples, lists or dicts of them",
            )

    def leaves(self, batch: Any) -> dict[str, Any]:
        """Return what a batch holds, by name.

        Raises:
            RuntimeGuardError: It is built otherwise than the first one.
        """
        paths, _ = pytree.tree_flatten_with_path(_plain(batch))
        found = dict(
            zip(_named([path for path, _ in paths]), (v for _, v in paths), strict=True)
        )
        if set(found) != set(self._names):
            raise RuntimeGuardError(
                f"a batch holds {', '.join(found)}; the first one held "
                f"{', '.join(self._names)}",
                hint="all batches of a loader must be built alike",
            )
        return found

    def rebuild(self, leaves: Mapping[str, Any]) -> Any:
        """Return the batch, or the micro-batch, that has these leaves."""
        values = [leaves[name] for name in self._names]
        batch = pytree.tree_unflatten(values, self._spec)
        return batch if self._kind is None else self._kind(batch)

    def weight(
        self, part: MicroBatch, tokens: Callable[[Any], Any] | None = None
    ) -> int:
        """Return how much a micro-batch counts in the means over its batch.

        Args:
            part: The micro-batch.
            tokens: Counts what its loss is a mean over; None: samples.
        """
        if tokens is None or part.samples == 0:
            return part.samples
        return int(tokens(self.rebuild(part)))

    def split(self, batch: Any, parts: int) -> list[MicroBatch]:
        """Return a batch as micro-batches, of sizes as equal as can be.

        Args:
            batch: Built like the first one.
            parts: How many. Where there are fewer samples, the last ones repeat the
                first sample and do not count.

        Raises:
            RuntimeGuardError: Tensors differ in their first dimension, or have none.
        """
        leaves = self.leaves(batch)
        samples = _samples(leaves)
        small, larger = divmod(samples, parts)
        sizes = [small + (index < larger) for index in range(parts)]
        starts = [sum(sizes[:index]) for index in range(parts)]
        return [
            MicroBatch(_cut(leaves, start, size), size) if size
            else MicroBatch(_cut(leaves, 0, 1), 0)
            for start, size in zip(starts, sizes, strict=True)
        ]  # fmt: skip


def _cut(leaves: Mapping[str, Any], start: int, size: int) -> dict[str, Any]:
    return {
        name: _ordinary(leaf[start : start + size])
        if isinstance(leaf, Tensor)
        else leaf
        for name, leaf in leaves.items()
    }


def _ordinary(tensor: Tensor) -> Tensor:
    """Return a tensor that autograd may know: evaluation loops make others."""
    return tensor.clone() if tensor.is_inference() else tensor


def _samples(leaves: Mapping[str, Any]) -> int:
    sizes = {
        name: leaf.shape[0] if leaf.dim() else None
        for name, leaf in leaves.items()
        if isinstance(leaf, Tensor)
    }
    counts = set(sizes.values())
    if len(counts) > 1 or None in counts or 0 in counts:
        shown = ", ".join(
            f"{name}: {'no dimension' if size is None else size}"
            for name, size in sizes.items()
        )
        raise RuntimeGuardError(
            "a batch is cut into micro-batches along the first dimension, and the "
            f"tensors of this one do not have one number of samples there: {shown}",
            hint="give every tensor one entry for each sample (expand what all share)",
        )
    (count,) = counts
    return int(count or 0)


def _is_foreign_mapping(batch: Any) -> bool:
    """Whether a batch is a mapping that pytree does not know (a BatchEncoding)."""
    return isinstance(batch, Mapping) and type(batch) not in pytree.SUPPORTED_NODES


def _plain(batch: Any) -> Any:
    return dict(batch) if _is_foreign_mapping(batch) else batch


def _named(paths: list[Any]) -> list[str]:
    """Return an identifier for each place: ``batch_0``, ``batch_labels``."""
    names: list[str] = []
    for path in paths:
        parts = re.findall(r"\w+", pytree.keystr(path))
        name = "_".join(["batch", *parts])
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def digest(batch: Any) -> str:
    """Return a short text that tells batches apart by what their tensors hold."""
    parts = []
    for leaf in pytree.tree_leaves(_plain(batch)):
        if isinstance(leaf, Tensor):
            total = leaf.detach().double().sum().item() if leaf.numel() else 0.0
            parts.append(f"{tuple(leaf.shape)}: {total!r}")
    return "; ".join(parts)
