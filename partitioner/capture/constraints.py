"""What the user wants kept whole or together: patterns → leaves and groups of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitioner.capture.patterns import Pattern, matching_paths
from partitioner.errors import OptionError
from partitioner.graph import Constraints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx, nn

    from partitioner.graph import Span

__all__ = ["calls_by_path", "resolve_constraints", "together"]

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
    pin: Mapping[Pattern, int] | None = None,
    equal_stages: _Patterns = (),
) -> Constraints:
    """Turn names, globs and classes into paths.

    Args:
        model: Whose modules are meant.
        leaf: Modules that are never recorded through: they run whole, on one stage.
        keep_together: Groups of modules; each group runs on one stage. A single flat
            sequence of patterns is one group.
        no_cut_inside: Modules that no cut may go through.
        pin: The stage that modules run on, by pattern.
        equal_stages: Modules of which every stage runs equally many.

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
        pin=tuple(_pins(model, pin or {})),
        equal_stages=_paths(model, _Named(equal_stages, "equal_stages")),
    )


def _pins(model: nn.Module, pin: Any) -> Iterator[tuple[str, int]]:
    if not isinstance(pin, Mapping):
        message = f"pin is {pin!r}"
        raise OptionError(message, hint='give stages by module: {"lm_head": -1}')
    for pattern, stage in pin.items():
        if type(stage) is not int:
            message = f"pin: stage {stage!r} of {pattern!r} is no whole number"
            raise OptionError(message, hint="count from 0, or from -1 for the last")
        for path in _paths(model, _Named(pattern, "pin")):
            yield path, stage


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


def calls_by_path(
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


def together(
    graph: fx.Graph, spans: Sequence[Span], constraints: Constraints
) -> list[frozenset[fx.Node]]:
    """Return the groups of nodes that the constraints keep on one stage."""
    calls = calls_by_path(graph, spans)
    groups = [
        frozenset(
            node for path in paths for nodes in calls.get(path, ()) for node in nodes
        )
        for paths in constraints.keep_together
    ]
    for path in constraints.no_cut_inside:
        groups += calls.get(path, [])
    return [group for group in groups if len(group) > 1]
