"""A checkpoint → an engine, by original names: any stages, cuts and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from partitioner.runtime.agreement import agree, raise_on_all_ranks
from partitioner.runtime.checkpoint.files import check_file
from partitioner.runtime.checkpoint.identity import (
    name_in_file,
    parameter_names,
    recorded_state,
)
from partitioner.runtime.checkpoint.manifest import MANIFEST, Manifest
from partitioner.runtime.checkpoint.match import (
    check_model,
    check_trained,
    differences,
)
from partitioner.runtime.checkpoint.optimizers import LiveOptimizer, live_optimizer
from partitioner.runtime.checkpoint.progress import (
    Progress,
    SavedProgress,
    Wanted,
    apply_progress,
    read_progress,
)
from partitioner.runtime.checkpoint.restore_optimizer import (
    OptimizerContent,
    apply,
    assemble,
    assemble_masters,
)
from partitioner.runtime.checkpoint.saved_model import SavedModel
from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer
from partitioner.runtime.checkpoint.saved_values import SavedValues

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from partitioner.runtime.checkpoint.folders import CheckpointFolder
    from partitioner.runtime.checkpoint.identity import PlanRecord
    from partitioner.runtime.checkpoint.process_state import Stateful

__all__ = ["load", "open_checkpoint", "verify_files"]


@dataclass(frozen=True, kw_only=True)
class _Content:
    """Everything that this rank takes over, before anything is changed."""

    layers: list[dict[str, Any]]
    head: dict[str, Any]
    live: LiveOptimizer | None
    optimizer: OptimizerContent | None
    masters: tuple[tuple[Tensor, ...], ...]
    progress: Progress


def open_checkpoint(folder: CheckpointFolder) -> tuple[Path, Manifest, str]:
    """Return the folder to read, its manifest and the manifest's text.

    Raises:
        CheckpointError: There is no complete checkpoint, or its manifest is damaged.
    """
    path = folder.readable()
    text = (path / MANIFEST).read_text(encoding="utf-8", errors="replace")
    return path, Manifest.from_json(text, where=str(path / MANIFEST)), text


def verify_files(path: Path, manifest: Manifest, *, part: int = 0, of: int = 1) -> None:
    """Compare the files of a checkpoint with what was written; every ``of``-th of them.

    Raises:
        CheckpointError: One is missing or damaged (which).
    """
    for name in sorted(manifest.files)[part::of]:
        check_file(path / name, manifest.files[name])


def load(
    engine: Any,
    record: PlanRecord,
    folder: CheckpointFolder,
    *,
    wanted: Wanted,
    attached: Mapping[str, Stateful],
) -> tuple[str, dict[str, Any], list[str]]:
    """Load a checkpoint; every rank must call. Nothing changes if anything is wrong.

    Returns:
        The checkpoint's folder, the user's ``client_state`` of its saving, and
        sentences on what differs from the run that was saved.

    Raises:
        CheckpointError: A file is missing or damaged (which), or state cannot be
            converted; on all ranks.
        PlanMismatchError: The checkpoint is of another model; on all ranks.
    """
    with raise_on_all_ranks("opening the checkpoint"):
        path, manifest, text = open_checkpoint(folder)
    agree({"fingerprint": [folder.tag, text, repr(wanted)]}, what="loading")
    with raise_on_all_ranks("checking the checkpoint's files"):
        verify_files(path, manifest, part=dist.get_rank(), of=dist.get_world_size())
    with raise_on_all_ranks("reading the checkpoint"), torch.no_grad():
        optimizer = SavedOptimizer(path, manifest, manifest.plan)
        content = _read(
            engine,
            record,
            SavedProgress(path, manifest, optimizer),
            SavedValues(SavedModel(path, manifest), optimizer),
            wanted=wanted,
            attached=attached,
        )
    with raise_on_all_ranks("taking over the checkpoint"), torch.no_grad():
        _apply(engine, content, wanted, attached)
    told = [*differences(record.identity, manifest), *content.progress.notes]
    return str(path), content.progress.client_state, told


def _read(
    engine: Any,
    record: PlanRecord,
    saved: SavedProgress,
    values: SavedValues,
    *,
    wanted: Wanted,
    attached: Mapping[str, Stateful],
) -> _Content:
    """Collect what this rank takes over; the engine stays as it is."""
    module = engine.module
    held = [recorded_state(layer) for layer in module.local_layers()]
    head = module.loss_fn.state_dict()
    check_model([*held, head], record.identity, values.model, strict=wanted.strict)
    live = live_optimizer(engine, parameter_names(module, record.identity))
    state = None
    if live is not None and wanted.optimizer and not values.optimizer.is_empty:
        check_trained(live, values.model, values.optimizer)
        state = assemble(live, values.optimizer)
    return _Content(
        layers=[values.like(own) for own in held],
        head=values.like(head),
        live=live,
        optimizer=state,
        masters=() if live is None else assemble_masters(live, values.precise),
        progress=read_progress(
            engine, saved, live=live, wanted=wanted, attached=attached
        ),
    )


def _apply(
    engine: Any, content: _Content, wanted: Wanted, attached: Mapping[str, Stateful]
) -> None:
    module = engine.module
    for layer, values in zip(module.local_layers(), content.layers, strict=True):
        named = {name_in_file(name): value for name, value in values.items()}
        layer.load_state_dict(named, strict=wanted.strict)
    module.loss_fn.load_state_dict(content.head)
    if content.live is not None:
        apply(content.live, content.optimizer, content.masters)
    apply_progress(engine, content.progress, attached)
