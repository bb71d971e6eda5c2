"""Which nodes no cut may separate: in-place writes, their memory, written buffers.

The rule: a value that is changed in place is sent or recomputed only as it is after
its last change that comes before the cut. So every node that makes a view of the
memory before its last writer stays with the writers; a reader that comes before a
writer may not run on a later stage than the writer, nor one that comes after on an
earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import fx

from partitioner.graph import info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Effects", "find_effects"]

Edge = tuple[fx.Node, fx.Node]


@dataclass(slots=True, kw_only=True)
class Effects:
    """Consequences of in-place writes."""

    groups: list[frozenset[fx.Node]] = field(default_factory=list)
    order_edges: list[Edge] = field(default_factory=list)
    written_buffers: frozenset[str] = frozenset()


def find_effects(graph: fx.Graph, weights: Mapping[int, str]) -> Effects:
    """Return groups and order edges of every storage that is written.

    Args:
        graph: Nodes in program order, with their facts.
        weights: Storage number → name of the parameter or buffer that owns it.
    """
    effects = Effects()
    effects.groups += _result_groups(graph)
    position = {node: index for index, node in enumerate(graph.nodes)}
    written = {storage for node in graph.nodes for storage in info(node).writes}
    buffers = set()
    for storage in sorted(written):
        owner = weights.get(storage)
        if owner is not None:
            buffers.add(owner)
            effects.groups.append(_users_of_weight(graph, storage, owner))
        else:
            _add_storage(effects, graph, storage, position)
    effects.groups = [group for group in effects.groups if len(group) > 1]
    effects.written_buffers = frozenset(buffers)
    return effects


def _result_groups(graph: fx.Graph) -> list[frozenset[fx.Node]]:
    """Parts of a nested result stay with the operation that returns it."""
    groups: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if is_part(node):
            groups.setdefault(owner_of(node), set()).add(node)
    return [frozenset({owner, *parts}) for owner, parts in groups.items()]


def is_part(node: fx.Node) -> bool:
    """Whether a node picks a part of another node's nested result."""
    return "part" in node.meta


def owner_of(node: fx.Node) -> fx.Node:
    """Return the operation whose nested result ``node`` is a part of."""
    while is_part(node):
        first = node.args[0]
        if not isinstance(first, fx.Node):
            break
        node = first
    return node


def _users_of_weight(graph: fx.Graph, storage: int, owner: str) -> frozenset[fx.Node]:
    """Everything that reads or writes a written buffer runs on one stage."""
    users: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" and _touches(node, storage):
            users.update(node.users)
        elif storage in info(node).writes or _holds(node, owner):
            users.add(node)
    return frozenset(users)


def _holds(node: fx.Node, weight: str) -> bool:
    """Whether a leaf module has the weight somewhere inside."""
    return node.op == "call_module" and weight.startswith(f"{node.target}.")


def _touches(node: fx.Node, storage: int) -> bool:
    return any(meta.storage == storage for meta in info(node).outputs)


def _add_storage(
    effects: Effects, graph: fx.Graph, storage: int, position: Mapping[fx.Node, int]
) -> None:
    makers = [node for node in graph.nodes if _touches(node, storage)]
    writers = [node for node in graph.nodes if storage in info(node).writes]
    last = max(position[node] for node in writers)
    kept = [node for node in makers if position[node] <= last]
    effects.groups.append(frozenset((*kept, *writers)))
    for reader in _readers(makers):
        for writer in writers:
            if reader is writer:
                continue
            before = position[reader] < position[writer]
            pair = (reader, writer) if before else (writer, reader)
            effects.order_edges.append(pair)


def _readers(makers: Iterable[fx.Node]) -> list[fx.Node]:
    readers = {user: None for maker in makers for user in maker.users}
    return [reader for reader in readers if reader.op != "output"]
