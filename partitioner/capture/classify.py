"""Say of each node whether it is placed, rebuilt on every stage, or run in the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partitioner.graph import NodeKind, info

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx, nn

    from partitioner.capture.effects import Effects

__all__ = ["classify"]


def classify(graph: fx.Graph, model: nn.Module, effects: Effects) -> None:
    """Set every node's kind: ``constant``, ``late`` or ``compute`` where it was open.

    A node is ``constant`` if it depends on no data, no parameter, no random draw and
    no written buffer: it costs nothing to speak of, and every stage that needs it
    rebuilds it. ``late`` nodes hang on an input that only parameter-free nodes at the
    end of the model read (labels): DeepSpeed hands such inputs to the last stage, so
    they run in its loss function and the inputs never cross a boundary.
    """
    for node in _constants(graph, model, effects):
        _set_kind(node, "constant")
    for node in _late(graph, model, effects):
        _set_kind(node, "late")


def _set_kind(node: fx.Node, kind: NodeKind) -> None:
    node.meta["info"] = replace(info(node), kind=kind)


def _constants(graph: fx.Graph, model: nn.Module, effects: Effects) -> set[fx.Node]:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    placed: set[fx.Node] = set()
    while True:
        constants = _constant_given(graph, parameters, effects, placed)
        mixed = {
            node
            for group in effects.groups
            if not group <= constants or _read_between(group, constants, effects)
            for node in group & constants
        }
        if not mixed:
            _remember_groups(effects, constants)
            return constants
        placed |= mixed


def _read_between(
    group: frozenset[fx.Node], constants: set[fx.Node], effects: Effects
) -> bool:
    """Whether placed nodes read a constant's memory before its last change."""
    return any(
        after in group and before not in constants
        for before, after in effects.order_edges
    )


def _remember_groups(effects: Effects, constants: set[fx.Node]) -> None:
    """A constant that was written in place is rebuilt with all its writers."""
    for group in effects.groups:
        if group <= constants:
            for node in group:
                node.meta["rebuilt_with"] = tuple(group)


def _constant_given(
    graph: fx.Graph, parameters: set[str], effects: Effects, placed: set[fx.Node]
) -> set[fx.Node]:
    """Return the constants if the nodes of ``placed`` are not."""
    constants: set[fx.Node] = set()
    for node in graph.nodes:
        facts = info(node)
        if facts.kind == "constant" and node.op == "get_attr":
            constants.add(node)  # the segment's own training flag or device
        if facts.kind == "constant" and node.op == "call_function":
            constants.add(node)
        if facts.kind != "compute" or node in placed or facts.draws:
            continue
        if node.op not in ("call_function", "call_method"):
            continue
        sources = node.all_input_nodes
        if all(
            source in constants
            or info(source).kind == "size"
            or _is_fixed_weight(source, parameters, effects)
            for source in sources
        ):
            constants.add(node)
    return constants


def _is_fixed_weight(node: fx.Node, parameters: set[str], effects: Effects) -> bool:
    return (
        node.op == "get_attr"
        and info(node).kind == "weight"
        and node.target not in parameters
        and node.target not in effects.written_buffers
    )


def _late(graph: fx.Graph, model: nn.Module, effects: Effects) -> set[fx.Node]:
    excluded: set[fx.Node] = set()
    while True:
        late = _late_given(graph, model, excluded)
        split = {
            node for group in effects.groups if not group <= late for node in group
        } & late
        # Whoever reads memory on another side of a write than the last stage does.
        split |= {
            node
            for edge in effects.order_edges
            if not late.issuperset(edge)
            for node in late.intersection(edge)
        }
        if not split:
            return late
        excluded |= split


def _late_given(
    graph: fx.Graph, model: nn.Module, excluded: set[fx.Node]
) -> set[fx.Node]:
    """Return the late nodes if those of ``excluded`` must stay on their stage."""
    tail: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if info(node).kind != "compute" or node in excluded or _only_checks(node):
            continue
        users = [user for user in node.users if user.op != "output"]
        if _is_free_of_weights(node, model) and all(user in tail for user in users):
            tail.add(node)
    late: set[fx.Node] = set()
    for node in graph.nodes:
        if node in tail and any(
            info(source).kind == "input" or source in late
            for source in node.all_input_nodes
        ):
            late.add(node)
    return late


def _only_checks(node: fx.Node) -> bool:
    return not info(node).outputs and not info(node).writes and not node.users


def _is_free_of_weights(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return not _has_any((module.parameters(), module.buffers()))
    return all(info(source).kind != "weight" for source in node.all_input_nodes)


def _has_any(iterables: Iterable[Iterable[object]]) -> bool:
    return any(True for iterable in iterables for _ in iterable)
