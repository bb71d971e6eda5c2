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


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Which storages every node returns and writes, in one mode."""

    storages: Mapping[fx.Node, tuple[int, ...]]
    writes: Mapping[fx.Node, tuple[int, ...]]


def find_effects(graph: fx.Graph, weights: Mapping[int, str]) -> Effects:
    """Return groups and order edges of every storage that is written.

    In both modes: dropout in eval mode returns its argument, so that a write to its
    result is a write to the argument there.

    Args:
        graph: Nodes in program order, with their facts.
        weights: Storage number → name of the parameter or buffer that owns it.
    """
    effects = Effects()
    effects.groups += _result_groups(graph)
    buffers: set[str] = set()
    for memory in (_in_train_mode(graph), _in_eval_mode(graph)):
        written = {storage for writes in memory.writes.values() for storage in writes}
        for storage in sorted(written):
            owner = weights.get(storage)
            if owner is not None:
                buffers.add(owner)
                group = _users_of_weight(graph, memory, storage, owner)
                effects.groups.append(group)
            else:
                _add_storage(effects, graph, memory, storage)
    # The modes mostly agree.
    effects.groups = [g for g in dict.fromkeys(effects.groups) if len(g) > 1]
    effects.order_edges = list(dict.fromkeys(effects.order_edges))
    effects.written_buffers = frozenset(buffers)
    return effects


def _in_train_mode(graph: fx.Graph) -> Memory:
    return Memory(
        storages={n: tuple(m.storage for m in info(n).outputs) for n in graph.nodes},
        writes={node: info(node).writes for node in graph.nodes},
    )


def _in_eval_mode(graph: fx.Graph) -> Memory:
    found = {node: node.meta.get("eval_memory", ((), ())) for node in graph.nodes}
    return Memory(
        storages={node: storages for node, (storages, _) in found.items()},
        writes={node: writes for node, (_, writes) in found.items()},
    )


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


def _users_of_weight(
    graph: fx.Graph, memory: Memory, storage: int, owner: str
) -> frozenset[fx.Node]:
    """Everything that reads or writes a written buffer runs on one stage."""
    users: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" and storage in memory.storages[node]:
            users.update(node.users)
        elif storage in memory.writes[node] or _holds(node, owner):
            users.add(node)
    return frozenset(users)


def _holds(node: fx.Node, weight: str) -> bool:
    """Whether a leaf module has the weight somewhere inside."""
    return node.op == "call_module" and weight.startswith(f"{node.target}.")


def _add_storage(
    effects: Effects, graph: fx.Graph, memory: Memory, storage: int
) -> None:
    position = {node: index for index, node in enumerate(graph.nodes)}
    makers = [node for node in graph.nodes if storage in memory.storages[node]]
    writers = [node for node in graph.nodes if storage in memory.writes[node]]
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
