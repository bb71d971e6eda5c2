"""A stage's memory by kind: what adds up to its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["memory_parts"]

_HELD = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "master_bytes": "master copies",
    "optimizer_bytes": "optimizer states",
}
_CARRIED = {
    "saved_bytes": "activations in flight",
    "received_bytes": "received tensors",
    "sent_kept_bytes": "sent tensors",
}


def memory_parts(stage: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return what fills a stage at its peak.

    Args:
        stage: An entry of a plan's ``stages``.

    Returns:
        Words and bytes, parts of zero bytes too; they add up to ``memory_bytes``.
    """
    memory = stage["memory"]
    parts = [(words, memory[name]) for name, words in _HELD.items()]
    buffers = memory["static_bytes"] - sum(nbytes for _, nbytes in parts)
    parts += [("buffers of ZeRO", buffers), ("wire buffers", memory["wire_bytes"])]
    carried = [(words, memory[name]) for name, words in _CARRIED.items()]
    carried.append((_moment(memory), memory["peak_bytes"]))
    if sum(nbytes for _, nbytes in carried) < memory["step_bytes"]:
        words = "the optimizer's step (activations need less)"
        carried = [(words, memory["step_bytes"])]
    return [*parts, *carried]


def _moment(memory: Mapping[str, Any]) -> str:
    """Say in which moment of a backward the stage holds most."""
    if memory["peak_bytes"] == memory["tail_transient_bytes"]:
        return "backward after the last layer"
    plain = memory["reserved_bytes"] + memory["transient_bytes"]
    if memory["recompute_peak_bytes"] > plain:
        return "one layer recomputed, and its backward"
    return "gradients of activations"
