"""The model's tensors in a checkpoint: one file for each layer, and two of our own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partitioner.runtime.checkpoint.identity import recorded_state
from partitioner.runtime.checkpoint.manifest import LayerRecord, TensorRecord
from partitioner.runtime.checkpoint.saved_model import UNPLACED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partitioner.runtime.checkpoint.files import HashingEngine
    from partitioner.runtime.checkpoint.identity import PlanRecord

__all__ = ["save_layers", "tensor_records"]

HEAD = "loss_part-model_states.pt"


def save_layers(
    engine: Any, record: PlanRecord, folder: Path, writer: HashingEngine
) -> list[LayerRecord]:
    """Describe the layers' files and add those that DeepSpeed knows nothing of.

    Args:
        engine: A first replica's, whose layers DeepSpeed has written.
        record: The plan.
        folder: Where to.
        writer: Writes and hashes.
    """
    module, stage = engine.module, engine.stage_id
    found = [
        LayerRecord(
            file=Path(module.ckpt_layer_path("", number)).name,
            stage=stage,
            tensors=tensor_records(recorded_state(layer)),
        )
        for number, layer in zip(
            _local_numbers(module), module.local_layers(), strict=True
        )
    ]
    for file, tensors in _extra(engine, record).items():
        if tensors:
            writer.save(
                {name: _alone(value) for name, value in tensors.items()},
                os.fspath(folder / file),
            )
            found.append(
                LayerRecord(file=file, stage=stage, tensors=tensor_records(tensors))
            )
    return found


def _extra(engine: Any, record: PlanRecord) -> dict[str, Mapping[str, Any]]:
    """Return what no layer of DeepSpeed's holds, by file."""
    extra: dict[str, Mapping[str, Any]] = {}
    if engine.module.computes_loss():
        extra[HEAD] = engine.module.loss_fn.state_dict()
    if engine.global_rank == 0:
        extra[UNPLACED] = {
            name: tensor.detach()
            for name, tensor in record.unplaced.items()
            if tensor.device.type != "meta"
        }
    return extra


def _local_numbers(module: Any) -> list[int]:
    """Return the numbers of this rank's layers, counted from its first stage's."""
    first: int = module._local_start  # noqa: SLF001 - where DeepSpeed counts from
    phases = getattr(module, "phase_bounds", [(first, module._local_stop)])  # noqa: SLF001
    return [index - first for start, stop in phases for index in range(start, stop)]


def _alone(value: Any) -> Any:
    """Return a tensor without the storage of which it may be a part."""
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def tensor_records(tensors: Mapping[str, Any]) -> dict[str, TensorRecord]:
    """Describe the tensors of a ``state_dict``; other entries have dtype "object"."""
    return {
        name: TensorRecord(
            shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch.")
        )
        if isinstance(value, Tensor)
        else TensorRecord(shape=(), dtype="object")
        for name, value in tensors.items()
    }
