"""What the user wants kept whole or together: patterns → leaves and groups of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.capture.patterns import Pattern, matching_paths
from partitioner.errors import OptionError
from partitioner.graph import Constraints

if TYPE_CHECKING:
    from torch import fx, nn

    from partitioner.graph import Span

__all__ = ["resolve_constraints", "together"]

_Patterns = Pattern | Sequence[Pattern]


@dataclass(frozen=True, slots=True)
class _Named:
    """An argument's value and name."""

    value: Any
    name: str


def resolve_constraints(
    model: nn.Module,
    *,
    leaf: _Patterns = (),
    keep_together: Sequence[_Patterns] = (),
    no_cut_inside: _Patterns = (),
) -> Constraints:
    """Turn names, globs and classes into paths.

    Args:
        model: Whose modules are meant.
        leaf: Modules that are never recorded through: they run whole, on one stage.
        keep_together: Groups of modules; each group runs on one stage. A single flat
            sequence of patterns is one group.
        no_cut_inside: Modules that no cut may go through.

    Raises:
        OptionError: A pattern matches no module, or is no pattern.
    """
    groups: Sequence[_Patterns] = keep_together
    if groups and not any(_is_sequence(group) for group in groups):
        groups = [keep_together]  # type: ignore[list-item]
    return Constraints(
        leaf=_paths(model, _Named(leaf, "leaf")),
        keep_together=tuple(
            _paths(model, _Named(group, "keep_together")) for group in groups
        ),
        no_cut_inside=_paths(model, _Named(no_cut_inside, "no_cut_inside")),
    )


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _paths(model: nn.Module, argument: _Named) -> tuple[str, ...]:
    value = argument.value
    patterns = list(value) if _is_sequence(value) else [value]
    for pattern in patterns:
        if not isinstance(pattern, str | type):
            message = f"{argument.name}: {pattern!r} is neither a name nor a class"
            hint = "give paths, globs like 'layers.*', or module classes"
            raise OptionError(message, hint=hint)
    return tuple(matching_paths(model, patterns, argument.name))


def together(
    graph: fx.Graph, spans: Sequence[Span], constraints: Constraints
) -> list[frozenset[fx.Node]]:
    """Return the groups of nodes that the constraints keep on one stage."""
    calls = _calls_by_path(graph, spans)
    groups = [
        frozenset(
            node for path in paths for nodes in calls.get(path, ()) for node in nodes
        )
        for paths in constraints.keep_together
    ]
    for path in constraints.no_cut_inside:
        groups += calls.get(path, [])
    return [group for group in groups if len(group) > 1]


def _calls_by_path(
    graph: fx.Graph, spans: Sequence[Span]
) -> dict[str, list[frozenset[fx.Node]]]:
    """Return the nodes of every call of every module."""
    found: dict[str, list[frozenset[fx.Node]]] = {}
    for span in spans:
        found.setdefault(span.path, []).append(span.nodes)
    for node in graph.nodes:
        if node.op == "call_module":
            found.setdefault(str(node.target), []).append(frozenset({node}))
    return found
