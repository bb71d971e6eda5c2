"""Python numbers that modules keep, and that a recomputation must not count twice."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = [
    "CONTAINERS",
    "PLAIN",
    "PythonState",
    "Values",
    "present",
    "refill",
    "restore",
]

PLAIN = (bool, int, float, complex, str, type(None))
CONTAINERS = (list, dict, set, deque)
_ABSENT = object()

_Place = tuple["nn.Module", str]
Values = dict[_Place, tuple[Any, Any]]
"""Module and attribute → its value, and a copy of its items if it is a container."""


class PythonState:
    """Learns by watching which plain attributes a module's forward changes.

    Numbers, and containers of numbers. The first forward in each mode compares all of
    them, later ones trust that, as for buffers.

    Args:
        module: Watched with its submodules.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changing: set[_Place] = set()
        self._modes: tuple[bool, ...] | None = None

    def taken(self) -> Values:
        """Return what a forward begins with, of all that it may change."""
        places = _places(self._module) if self._is_new() else self._changing
        return {place: _frozen(place) for place in places}

    def learn(self, before: Values) -> None:
        """Note what has changed, after a whole forward."""
        self._changing |= self.changed(before).keys()
        self._modes = self._present_modes()

    def changed(self, before: Values) -> Values:
        """Return the earlier values of what has another one now."""
        places = {*before, *(_places(self._module) if self._is_new() else ())}
        found = {place: before.get(place, (_ABSENT, None)) for place in places}
        return {
            place: value
            for place, value in found.items()
            if _is_plain(vars(place[0]).get(place[1]))
            and _text(value) != _text(_frozen(place))
        }

    def _is_new(self) -> bool:
        return self._modes != self._present_modes()

    def _present_modes(self) -> tuple[bool, ...]:
        return tuple(module.training for module in self._module.modules())


def present(values: Values) -> Values:
    """Return the present values of the same attributes."""
    return {place: _frozen(place) for place in values}


def restore(values: Values) -> None:
    """Put earlier values back; containers stay the objects that they were."""
    for (owner, name), (value, items) in values.items():
        if value is _ABSENT:
            vars(owner).pop(name, None)
            continue
        vars(owner)[name] = value
        if items is not None:
            refill(value, items)


def refill(container: Any, items: Any) -> None:
    """Put earlier items back into a list, dict, set or deque."""
    container.clear()
    is_row = isinstance(container, list | deque)
    add = container.extend if is_row else container.update
    add(items)


def _places(module: nn.Module) -> Iterator[_Place]:
    for part in module.modules():
        for name, value in vars(part).items():
            if _is_plain(value):
                yield part, name


def _is_plain(value: Any) -> bool:
    if type(value) not in CONTAINERS:
        return isinstance(value, PLAIN)
    items = value.values() if isinstance(value, dict) else value
    return all(isinstance(item, PLAIN) for item in items)


def _frozen(place: _Place) -> tuple[Any, Any]:
    owner, name = place
    value = vars(owner).get(name, _ABSENT)
    return value, value.copy() if type(value) in CONTAINERS else None


def _text(frozen: tuple[Any, Any]) -> str:
    value, items = frozen
    return repr(value if items is None else items)  # as text: nan is nan, 1 not True
