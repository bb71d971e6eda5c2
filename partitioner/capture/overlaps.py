"""Parameters and buffers that are different tensors over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import fx, nn

__all__ = ["overlap_groups", "overlap_notes", "overlapping_weights"]


def overlapping_weights(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of weights that share bytes, each cluster together.

    Weights that lie side by side in one storage (flattened parameters) share none.
    A tensor registered twice is one weight, under its first name.
    """
    by_storage: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.numel():
            key = tensor.untyped_storage()._cdata  # noqa: SLF001 - data_ptr is 0 on meta
            by_storage.setdefault(key, []).append((*_bytes_of(tensor), name))
    found = []
    for ranges in by_storage.values():
        found += [cluster for cluster in _clusters(sorted(ranges)) if len(cluster) > 1]
    return found


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one after its last."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in pairs)
    first = int(tensor.storage_offset())
    width_bytes = tensor.element_size()
    return first * width_bytes, (first + last + 1) * width_bytes


def _clusters(ranges: Sequence[tuple[int, int, str]]) -> list[tuple[str, ...]]:
    clusters: list[list[str]] = []
    reached = -1
    for start, end, name in ranges:
        if start < reached:
            clusters[-1].append(name)
        else:
            clusters.append([name])
        reached = max(reached, end)
    return [tuple(sorted(cluster)) for cluster in clusters]


def overlap_groups(
    graph: fx.Graph, clusters: Sequence[tuple[str, ...]], aliases: Mapping[str, str]
) -> list[frozenset[fx.Node]]:
    """Return, for each cluster, every node that reads one of its weights.

    Args:
        graph: The model's nodes.
        clusters: What :func:`overlapping_weights` found.
        aliases: Every name of a weight → its first name.
    """
    groups = []
    for cluster in clusters:
        names = {name for name, first in aliases.items() if first in cluster}
        users: set[fx.Node] = set()
        for node in graph.nodes:
            if node.op == "get_attr" and node.target in names:
                users.update(user for user in node.users if user.op != "output")
            elif node.op == "call_module" and _inside(str(node.target), names):
                users.add(node)
        groups.append(frozenset(users))
    return [group for group in groups if len(group) > 1]


def _inside(path: str, names: set[str]) -> bool:
    return any(name.startswith(f"{path}.") for name in names)


def overlap_notes(clusters: Sequence[tuple[str, ...]]) -> list[str]:
    """Say which weights share memory."""
    return [
        f"{', '.join(cluster)} share memory: whatever reads them runs on one stage"
        for cluster in clusters
    ]
