"""Nested values (tuples, lists, dicts, dataclasses): walk, map, flatten, rebuild."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from partitioner.capture.records import Ref

if TYPE_CHECKING:
    from partitioner.capture.records import Path

__all__ = [
    "Opaque",
    "children",
    "flatten",
    "is_plain",
    "leaves",
    "map_tree",
    "rebuild",
    "relabel",
    "template",
    "template_leaves",
    "tensor_paths",
    "trees_differ",
]

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis),
    torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum,
)  # fmt: skip


_EXACTLY_PLAIN = frozenset(PLAIN)


class Opaque:
    """Stands for a library object (a cache) that an output held: it becomes None."""

    def __init__(self, value: object) -> None:
        self.name = type(value).__name__

    def __repr__(self) -> str:
        return f"<{self.name}>"


def is_plain(value: object) -> bool:
    """Whether ``value`` is an immutable leaf that can stand in an argument list."""
    # Asked for every argument of every operation: by exact class first.
    return type(value) in _EXACTLY_PLAIN or isinstance(value, (PLAIN, type))


def map_tree(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to every leaf of tuples, lists, dicts and slices."""
    kind = type(value)
    if kind is tuple:  # nearly all: first, and without a call
        return tuple([map_tree(function, item) for item in value])
    if kind in _EXACTLY_PLAIN:
        return function(value)
    if isinstance(value, tuple):
        return _map_tuple(function, value)
    if isinstance(value, list):
        return [map_tree(function, item) for item in value]
    if kind is dict:
        return {key: map_tree(function, item) for key, item in value.items()}
    return _map_slice(function, value) if kind is slice else function(value)


def _map_slice(function: Callable[[Any], Any], value: slice) -> slice:
    parts = (value.start, value.stop, value.step)
    return slice(*(map_tree(function, part) for part in parts))


def _map_tuple(function: Callable[[Any], Any], value: Any) -> Any:
    items = [map_tree(function, item) for item in value]
    if hasattr(value, "_fields"):
        return type(value)(*items)
    if hasattr(value, "n_sequence_fields"):  # torch.return_types
        return type(value)(items)
    return tuple(items)


def children(value: Any) -> Iterator[tuple[tuple[str, Any], Any]] | None:
    """Yield (step, child) of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return ((("item", key), item) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return ((("item", index), item) for index, item in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return ((("attr", name), getattr(value, name)) for name in names)
    return None


def flatten(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (path, leaf) in order; containers are tuples, lists, dicts, dataclasses."""
    inside = children(value)
    if inside is None:
        yield path, value
        return
    for step, child in inside:
        yield from flatten(child, (*path, step))


def template(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Copy an output's structure with ``leaf`` applied to its leaves.

    Containers become (class, [(key, child)…]) nodes that :func:`rebuild` turns back
    into the same classes; a leaf that is neither plain nor mapped becomes an
    :class:`Opaque`.
    """
    inside = children(value)
    if inside is None:
        return leaf(value)
    return _Container(
        type(value), [(step, template(child, leaf)) for step, child in inside]
    )


@dataclasses.dataclass(slots=True)
class _Container:
    """One container of a template."""

    kind: type
    items: list[tuple[tuple[str, Any], Any]]


def rebuild(structure: Any, leaf: Callable[[Any], Any]) -> Any:
    """Make the output again from its template; ``leaf`` maps the template's leaves."""
    if not isinstance(structure, _Container):
        return None if isinstance(structure, Opaque) else leaf(structure)
    items = [(step[1], rebuild(child, leaf)) for step, child in structure.items]
    kind = structure.kind
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(child for _, child in items))
    if issubclass(kind, (tuple, list)):
        return kind(child for _, child in items)
    if issubclass(kind, Mapping) and not dataclasses.is_dataclass(kind):
        return _as_mapping(kind, items)
    return kind(**dict(items))


def _as_mapping(kind: type, items: list[tuple[Any, Any]]) -> Any:
    try:
        return kind(items)
    except TypeError:
        return dict(items)


def leaves(structure: Any) -> Iterator[Any]:
    """Yield the leaves of a template in order."""
    if isinstance(structure, _Container):
        for _, child in structure.items:
            yield from leaves(child)
    else:
        yield structure


def relabel(structure: Any, function: Callable[[Any], Any]) -> Any:
    """Return a template with ``function`` applied to its leaves."""
    if isinstance(structure, _Container):
        items = [(step, relabel(child, function)) for step, child in structure.items]
        return _Container(structure.kind, items)
    return function(structure)


def template_leaves(structure: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (access path, leaf) of a template in order."""
    if not isinstance(structure, _Container):
        yield path, structure
        return
    for step, child in structure.items:
        yield from template_leaves(child, (*path, step))


def tensor_paths(structure: Any) -> list[tuple[Path, Ref]]:
    """Return where in a module's result each tensor is."""
    found = template_leaves(structure)
    return [(path, leaf) for path, leaf in found if isinstance(leaf, Ref)]


def trees_differ(first: Any, second: Any) -> bool:
    """Whether two templates differ in their containers or in a leaf."""
    if type(first) is not type(second):
        return True
    if isinstance(first, _Container):
        steps = [[step for step, _ in tree.items] for tree in (first, second)]
        if first.kind is not second.kind or bool(steps[0] != steps[1]):
            return True
        pairs = zip(first.items, second.items, strict=True)
        return any(trees_differ(a, b) for (_, a), (_, b) in pairs)
    if isinstance(first, Opaque):
        return bool(first.name != second.name)
    return bool(repr(first) != repr(second))
