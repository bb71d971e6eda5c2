"""Plan → what its checkpoints say about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.runtime.checkpoint import PlanIdentity, PlanRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from partitioner.emit.layers import Layers
    from partitioner.graph import ModelGraph
    from partitioner.runtime.segment import SegmentBody

__all__ = ["plan_record", "stored_tensors"]


def plan_record(graph: ModelGraph, layers: Layers) -> PlanRecord:
    """Describe a plan for its checkpoints.

    Args:
        graph: The recorded model.
        layers: The plan's segments.
    """
    model = graph.model
    entries = model.state_dict(keep_vars=True)
    aliases = _aliases(entries)
    bodies = [layer.body for layer in layers.layers]
    if layers.head is not None:
        bodies.append(layers.head)
    held = {aliases.get(name, name) for body in bodies for name in _stored(body)}
    identity = PlanIdentity(
        fingerprint=graph.fingerprint,
        model_class=f"{type(model).__module__}.{type(model).__qualname__}",
        parts=layers.parts,
        recomputed=tuple(layer.body.checkpointed for layer in layers.layers),
        ties={tie.name: tie.stages for tie in layers.ties},
        aliases=aliases,
        config=_config(model),
    )
    unplaced = {
        name: value
        for name, value in entries.items()
        if isinstance(value, Tensor) and aliases[name] == name and name not in held
    }
    return PlanRecord(identity=identity, unplaced=unplaced)


def stored_tensors(graph: ModelGraph, layers: Layers) -> list[dict[str, Tensor]]:
    """Return for each segment the tensors of its ``state_dict``, by original name."""
    entries = graph.model.state_dict(keep_vars=True)
    return [
        {
            name: entries[name]
            for name in _stored(layer.body)
            if isinstance(entries[name], Tensor)
        }
        for layer in layers.layers
    ]


def _aliases(entries: dict[str, Any]) -> dict[str, str]:
    """Return every name of a ``state_dict`` with the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(value), name) for name, value in entries.items()}


def _stored(body: SegmentBody) -> Iterator[str]:
    """Yield the names of a segment's ``state_dict``."""
    yield from body.parameters
    yield from (name for name, (_, persistent) in body.buffers.items() if persistent)
    for path, module in body.modules.items():
        for name in module.state_dict(keep_vars=True):
            yield f"{path}.{name}"


def _config(model: nn.Module) -> dict[str, Any] | None:
    """Return a Hugging Face model's configuration, as its ``config.json`` has it."""
    config = getattr(model, "config", None)
    to_json = getattr(config, "to_json_string", None)
    if to_json is None or not hasattr(model, "save_pretrained"):
        return None
    found: dict[str, Any] = json.loads(to_json())
    found["architectures"] = [type(model).__name__]
    return found
