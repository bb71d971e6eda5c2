"""Findings and a configuration → a corrected copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partitioner.doctor.finding import REMOVED, Edit

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["edited"]


def edited(config: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """Return a copy with the changes made; all else is as it was, in its order.

    A section that loses its last entry goes too, unless it was empty before.
    """
    result: dict[str, Any] = _copy(config)
    for edit in edits:
        _apply(result, edit.path, edit.value)
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _apply(section: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    key, rest = path[0], path[1:]
    if not rest:
        if value is REMOVED:
            section.pop(key, None)
        else:
            section[key] = value
        return
    inner = section.get(key)
    if not isinstance(inner, dict):
        if value is REMOVED:
            return
        inner = section[key] = {}
    _apply(inner, rest, value)
    if not inner and value is REMOVED:
        del section[key]
