"""Read the fields of a device profile from a TOML or JSON file, and check them."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partitioner.errors import OptionError
from partitioner.options import parse_bytes

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["SUFFIXES", "read_fields"]

SUFFIXES = (".toml", ".json")

_TEXT = ("name", "source", "kind")
_NUMBERS = (
    "memory_bandwidth",
    "link_bandwidth",
    "link_latency_s",
    "launch_s",
    "bandwidth_efficiency",
)
_TABLES = ("peak_flops", "efficiency", "streams")
_OPTIONAL = ("source", "kind", "bandwidth_efficiency", "efficiency", "streams")
_KEYS = ("memory_bytes", *_TEXT, *_NUMBERS, *_TABLES)


def read_fields(path: Path) -> dict[str, Any]:
    """Return a profile's fields as its file gives them.

    ``memory_bytes`` may be text like ``"80GB"``; ``source`` is the file if it names
    none.

    Raises:
        OptionError: The file cannot be read, or a key is unknown, missing or of the
            wrong kind; names the file and the key.
    """
    content = _parsed(path)
    for key in content:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"keys: {', '.join(_KEYS)}"
            raise OptionError(f"{path}: {key!r} is no key of a profile", hint=hint)
    for key in _KEYS:
        if key not in content and key not in _OPTIONAL:
            raise OptionError(
                f"{path}: {key!r} is missing", hint="see docs/costs.md for an example"
            )
    found = {key: _checked(path, key, value) for key, value in content.items()}
    return {"source": str(path), **found}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        message = f"device profile {path} cannot be read: {error.strerror}"
        raise OptionError(message, hint="give a profile's name or a file") from error
    except ValueError as error:  # of JSON, TOML and UTF-8 alike
        kind = path.suffix.removeprefix(".").upper()
        raise OptionError(f"{path} is no {kind}: {error}") from error
    if not isinstance(content, dict):
        raise OptionError(f"{path}: a profile is a table of keys", hint="see the docs")
    return content


def _checked(path: Path, key: str, value: Any) -> Any:
    if key == "memory_bytes":
        try:
            return parse_bytes(value)
        except OptionError as error:
            message = f"{path}: {key}: {error.message}"
            raise OptionError(message, hint=error.hint) from error
    if key in _TEXT:
        if not isinstance(value, str):
            raise OptionError(f"{path}: {key} is {value!r}, not text")
        return value
    if key in _NUMBERS:
        return _number(path, key, value)
    if not isinstance(value, Mapping):
        raise OptionError(f"{path}: {key} is {value!r}, not a table of numbers")
    return {name: _number(path, f"{key}.{name}", x) for name, x in value.items()}


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{path}: {key} is {value!r}, not a number")
    return float(value)
