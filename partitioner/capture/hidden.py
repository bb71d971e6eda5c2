"""State that no operation shows: generators and counters that leaves keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.runtime.host_generators import own_generators

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import fx, nn

__all__ = ["hidden_groups"]


def hidden_groups(
    graph: fx.Graph, model: nn.Module, counting: Collection[str]
) -> list[frozenset[fx.Node]]:
    """Return the calls that must run on one stage, since they share hidden state.

    Stages are processes: each would draw from a generator, or count, for itself.

    Args:
        graph: The model's nodes.
        model: Its modules; a generator may be kept by several.
        counting: Paths of leaves that change Python numbers of their own.
    """
    users: dict[Any, set[fx.Node]] = {}
    for node in graph.find_nodes(op="call_module"):
        path = str(node.target)
        for generator in own_generators(model.get_submodule(path)):
            users.setdefault(id(generator), set()).add(node)
        if path in counting:
            users.setdefault(path, set()).add(node)
    return [frozenset(nodes) for nodes in users.values() if len(nodes) > 1]
