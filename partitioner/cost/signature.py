"""Name the work of a node or of a block, the same in every process."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from partitioner.cost.leaves import ByIdentity
from partitioner.cost.slots import Slot
from partitioner.graph import Region

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["block_signature", "node_signature"]

_DIGEST_BYTES = 12
_PRINTABLE = (
    type(None), bool, int, float, str, torch.dtype, torch.device, Region,
)  # fmt: skip
"""Types whose ``repr`` says all, and the same in every process."""


def node_signature(name: str, key: object) -> str:
    """Return a text that is equal for equal work, and starts with a readable name.

    Args:
        name: The operator or module class.
        key: ``Arguments.key`` of the node.
    """
    digest = hashlib.blake2b(_text(key).encode(), digest_size=_DIGEST_BYTES)
    return f"{name} {digest.hexdigest()}"


def block_signature(name: str, parts: Iterable[str], *, compiled: bool) -> str:
    """Return the signature of a module call that runs nodes of these signatures."""
    text = "\n".join([str(compiled), *parts])
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES)
    return f"{name} {digest.hexdigest()}"


def _text(value: Any) -> str:
    if isinstance(value, ByIdentity):
        value = value.value
    if isinstance(value, tuple | list):
        return f"({','.join(map(_text, value))})"
    if isinstance(value, Slot):
        grad = "g" if value.requires_grad else ""
        order = f"@{list(value.order)}" if value.order else ""
        return f"{value.dtype}{list(value.shape)}{order}{grad}#{value.position}"
    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, _PRINTABLE):
        return repr(value)
    return _name(value) if callable(value) else _object(value)


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name or type(value).__qualname__}"


def _object(value: Any) -> str:
    """Describe an object by its class and its plain attributes."""
    attributes = getattr(value, "__dict__", {})
    plain = {k: v for k, v in sorted(attributes.items()) if isinstance(v, _PRINTABLE)}
    return f"{_name(type(value))}{plain}"
