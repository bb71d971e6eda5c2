"""A configuration's file → its content; comments and commas at the end allowed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hjson

from partitioner.errors import OptionError

__all__ = ["ConfigFile", "config_text", "read_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file holds."""

    config: dict[str, Any]
    duplicates: tuple[str, ...]
    """Keys that one object has more than once; the last one counts here."""


def read_config(path: str | Path) -> ConfigFile:
    """Read a configuration with the parser that DeepSpeed reads it with.

    Raises:
        OptionError: The file cannot be read, is no JSON, or no object.
    """
    duplicates: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        names = [name for name, _ in pairs]
        duplicates.extend(name for name in found if names.count(name) > 1)
        return found

    try:
        text = Path(path).read_text(encoding="utf-8")
        config = hjson.loads(text, object_pairs_hook=collect)
    except OSError as error:
        message = f"configuration {path} cannot be read: {error.strerror}"
        raise OptionError(message) from error
    except (hjson.HjsonDecodeError, UnicodeDecodeError) as error:
        message = f"configuration {path} is no JSON: {error}"
        raise OptionError(message, hint="comments are allowed, see line") from error
    if not isinstance(config, dict):
        raise OptionError(f"configuration {path} is no JSON object")
    return ConfigFile(config=config, duplicates=tuple(duplicates))


def config_text(config: dict[str, Any]) -> str:
    """Write a configuration as plain JSON, in the order of its keys."""
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
