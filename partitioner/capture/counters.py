"""Plain Python state of modules (counters, flags) that a forward changes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from torch import nn

from partitioner.capture.tree import is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Counters", "set_attributes"]

NUMBERS = (bool, int, float, complex, str)
CONTAINERS = (list, tuple, set, frozenset)

_MISSING = object()
_TABLES = frozenset(nn.Module().__dict__) - {"training"}
"""nn.Module's own tables of weights, children and hooks."""


class Counters:
    """Remembers every module's attributes that are plain values, or hold only such.

    What a forward does with a counter is recorded once, with the value of that day. A
    first value in place of None is left out: that is how libraries keep what they
    have computed.

    Args:
        model: The module, as it is before a forward.
    """

    def __init__(self, model: nn.Module) -> None:
        self._known = {id(module): _plain_state(module) for module in model.modules()}

    def changed(self, module: nn.Module) -> list[str]:
        """Return the attributes below ``module`` that have another value now."""
        found = []
        for path, inner in module.named_modules():
            before = self._known.get(id(inner), {})
            found += [
                f"{path}.{name}" if path else name
                for name, value in before.items()
                if _differs(value, _frozen(_read(inner, name)))
            ]
        return found

    def accept(self, module: nn.Module) -> None:
        """Take the values that a call of ``module`` as a whole has left."""
        for inner in module.modules():
            self._known[id(inner)] = _plain_state(inner)


def _plain_state(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module and of its class that are plain values."""
    cls: Any = type(module)
    own = {name: _frozen(value) for name, value in module.__dict__.items()}
    return {
        name: value
        for name, value in (_defaults(cls) | own).items()
        if value is not _MISSING and value is not None and name not in _TABLES
    }


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """Return the plain attributes of a class, which its objects may set anew."""
    found = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(nn.Module)]):
        for name, value in base.__dict__.items():
            if not name.startswith("__"):
                found[name] = _frozen(value)
    return found


def _read(module: nn.Module, name: str) -> Any:
    """Return an attribute without running a property or nn.Module's look-up."""
    if name in module.__dict__:
        return module.__dict__[name]
    return next(
        (c.__dict__[name] for c in type(module).__mro__ if name in c.__dict__), None
    )


def _frozen(value: Any) -> Any:
    """Return a plain value, or a copy of a container of such; else the marker."""
    if isinstance(value, NUMBERS) or value is None:
        return value
    if type(value) is dict:
        keys = tuple(value)
        frozen = _frozen(tuple(value.values()))
        return _MISSING if frozen is _MISSING else (dict, keys, frozen)
    if type(value) in CONTAINERS:
        items = [_frozen(item) for item in value]
        if any(item is _MISSING for item in items):
            return _MISSING
        return (type(value), *items)
    return _MISSING


def _differs(before: Any, after: Any) -> bool:
    """Whether a plain value became another one (not a container of tensors)."""
    if before is after or after is _MISSING:
        return False
    return repr(before) != repr(after)  # as text: True == 1, and nan != nan


def set_attributes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the attributes that a forward has set."""
    missing = object()
    return [
        name
        for name, value in after.items()
        if (old := before.get(name, missing)) is not value
        and not (is_plain(value) and is_plain(old) and value == old)
    ]
