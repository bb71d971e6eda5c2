"""A report's dictionary → JSON text that is the same for equal dictionaries."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_json"]


def as_json(document: Mapping[str, Any]) -> str:
    """Write a document as JSON: keys sorted, two spaces of indent, one final newline.

    JSON has no number for infinity and none for "not a number"; a failed comparison
    can hold both. They become the strings ``"inf"``, ``"-inf"`` and ``"nan"``, which
    ``float()`` reads back.

    Args:
        document: Nested mappings, sequences, strings, numbers, booleans and None.

    Returns:
        The text, in ASCII characters, so that no terminal or pipe can spoil it.

    Raises:
        TypeError: A value has no JSON form.
    """
    plain = _finite(document)
    text = json.dumps(plain, indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value
