"""Weights in safetensors → a checkpoint to begin training from, of a plan."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import deepspeed

from partitioner.errors import CheckpointError, OptionError
from partitioner.runtime.agreement import versions
from partitioner.runtime.checkpoint.files import HashingEngine, write_durably
from partitioner.runtime.checkpoint.manifest import (
    MANIFEST,
    LayerRecord,
    Manifest,
    StageRecord,
)
from partitioner.runtime.checkpoint.save_layers import tensor_records
from partitioner.runtime.checkpoint.saved_model import UNPLACED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from partitioner.runtime.checkpoint.folders import CheckpointFolder
    from partitioner.runtime.checkpoint.identity import PlanRecord
    from partitioner.runtime.checkpoint.manifest import PlanIdentity

__all__ = ["import_weights"]

_SHOWN = 5


def import_weights(
    weights: Path,
    folder: CheckpointFolder,
    record: PlanRecord,
    segments: Sequence[Mapping[str, Tensor]],
) -> tuple[str, ...]:
    """Write a checkpoint of step 0 for a plan; one segment at a time is in memory.

    Tensors keep the dtype of their file: a bf16 run begins with fp32 copies as precise
    as that.

    Args:
        weights: A safetensors file, or a folder with ``model.safetensors`` or shards
            and their index.
        folder: Where to write.
        record: The plan.
        segments: The tensors of each of its segments, for their names and shapes.

    Returns:
        Names in the files that the model does not have.

    Raises:
        CheckpointError: A tensor is missing or of another shape, or a file unreadable.
        OptionError: There is such a checkpoint already.
    """
    if folder.final.exists():
        raise OptionError(f"{folder.final} is there already", hint="choose another tag")
    with ExitStack() as stack:
        source = _Source(weights, record.identity, stack)
        source.check([*segments, dict(record.unplaced)])
        folder.prepare()
        manifest = _write(source, folder, record, segments)
        write_durably(folder.partial / MANIFEST, manifest.to_json())
        folder.publish()
        folder.make_latest()
        return source.unknown()


class _Source:
    """Tensors in safetensors files, by name; read one at a time."""

    def __init__(self, path: Path, plan: PlanIdentity, stack: ExitStack) -> None:
        self._path = path
        self._plan = plan
        self._opened: dict[str, Any] = {}
        for file in _weight_files(path):
            opened = stack.enter_context(_opened(file))
            self._opened.update(dict.fromkeys(opened.keys(), opened))
        self._others: dict[str, list[str]] = {}
        for name, first in plan.aliases.items():
            self._others.setdefault(first, []).append(name)

    def check(self, wanted: Sequence[Mapping[str, Tensor]]) -> None:
        """Find out what is missing or of another shape, before anything is written."""
        faults = []
        for tensors in wanted:
            for name, tensor in tensors.items():
                stored = self._stored_as(name)
                if stored is None:
                    faults.append(f"{name} is missing")
                    continue
                shape = tuple(self._opened[stored].get_slice(stored).get_shape())
                if shape != tuple(tensor.shape):
                    faults.append(
                        f"{name} has shape {shape}, not {tuple(tensor.shape)}"
                    )
        if faults:
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            raise CheckpointError(
                f"{self._path} does not fit the model: "
                f"{'; '.join(faults[:_SHOWN])}{more}",
                hint="are they the weights of this model, under its own names?",
            )

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return tensors by the model's names."""
        found = {}
        for name in names:
            stored = self._stored_as(name)
            found[name] = self._opened[str(stored)].get_tensor(stored)
        return found

    def unknown(self) -> tuple[str, ...]:
        """Return names that are not the model's."""
        return tuple(sorted(set(self._opened) - set(self._plan.aliases)))

    def _stored_as(self, name: str) -> str | None:
        """Return the name under which a tensor stands there: any of its own."""
        names = [name, *self._others.get(self._plan.first_name(name), ())]
        return next((each for each in names if each in self._opened), None)


def _weight_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise CheckpointError(
            f"{path} holds neither model.safetensors nor {index.name}",
            hint="give a safetensors file, or the folder of a Hugging Face model",
        )
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [path / name for name in sorted(set(names))]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is no index: {error}") from error


def _opened(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - needed here alone

    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file} cannot be read as safetensors: {error}",
            hint="convert it first: safetensors.torch.save_file(torch.load(…), …)",
        ) from error


def _write(
    source: _Source,
    folder: CheckpointFolder,
    record: PlanRecord,
    segments: Sequence[Mapping[str, Tensor]],
) -> Manifest:
    writer, plan = HashingEngine(), record.identity
    parts = [
        (f"layer_{index:02d}-model_states.pt", sum(i <= index for i in plan.parts[1:]))
        for index in range(len(segments))
    ]
    contents = [*segments, *([record.unplaced] if record.unplaced else [])]
    layers = []
    for (file, stage), names in zip([*parts, (UNPLACED, 0)], contents, strict=False):
        tensors = source.read(list(names))
        writer.save(tensors, str(folder.partial / file))
        records = tensor_records(tensors)
        layers.append(LayerRecord(file=file, stage=stage, tensors=records))
    stages = []
    for stage in range(plan.stages):
        file = f"mp_rank_{stage:02d}_model_states.pt"
        writer.save(_engine_state(plan.stages), str(folder.partial / file))
        stages.append(StageRecord(file=file, optimizer=None))
    return Manifest(
        tag=folder.tag,
        global_steps=0,
        versions=versions(),
        plan=plan,
        replicas=1,
        layers=tuple(layers),
        stages=tuple(stages),
        ranks=(),
        files=dict(sorted(writer.written.items())),
    )


def _engine_state(stages: int) -> dict[str, Any]:
    """Return what DeepSpeed's engine writes of itself, before the first step."""
    return {
        "module": None,
        "optimizer": None,
        "lr_scheduler": None,
        "skipped_steps": 0,
        "global_steps": 0,
        "global_samples": 0,
        "dp_world_size": 1,
        "mp_world_size": stages,
        "ds_version": deepspeed.__version__,
    }
