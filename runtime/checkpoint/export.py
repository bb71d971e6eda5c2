"""A checkpoint → the original model's ``state_dict``, as safetensors; no processes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from partitioner.errors import CheckpointError, OptionError
from partitioner.runtime.checkpoint.files import check_file, write_durably
from partitioner.runtime.checkpoint.folders import CheckpointFolder, latest_tag
from partitioner.runtime.checkpoint.load import open_checkpoint
from partitioner.runtime.checkpoint.manifest import MANIFEST, Manifest
from partitioner.runtime.checkpoint.saved_model import SavedModel
from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer
from partitioner.runtime.checkpoint.saved_values import SavedValues

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["DTYPES", "Exported", "export", "find_checkpoint", "read_weights"]

DTYPES = ("float32", "bfloat16", "float16")
_PATTERN = "model{suffix}.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written.

    Args:
        step: Training steps that the weights have seen.
        tensors: How many there are.
        bytes: Their size.
        files: The weight files.
        left_out: Entries of the ``state_dict`` that are no tensors.
    """

    step: int
    tensors: int
    bytes: int
    files: tuple[str, ...]
    left_out: tuple[str, ...]


def find_checkpoint(path: Path) -> CheckpointFolder:
    """Return a checkpoint's folder, from itself or from the folder of all tags.

    Raises:
        CheckpointError: There is none.
    """
    path = path.absolute()
    if (path / MANIFEST).is_file():
        return CheckpointFolder(path.parent, path.name)
    tag = latest_tag(path)
    if tag is None:
        raise CheckpointError(
            f"{path} is no checkpoint: neither {MANIFEST} nor 'latest' is in it",
            hint="give the folder that engine.save_checkpoint() wrote to",
        )
    return CheckpointFolder(path, tag)


def export(
    folder: CheckpointFolder,
    output: Path,
    *,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
) -> Exported:
    """Write the model's ``state_dict`` under its original names; needs no model.

    One shard at most is in memory, and of tensors that keep their dtype nothing.

    Args:
        folder: The checkpoint.
        output: A folder that is new or empty.
        dtype: Of floating parameters and buffers: one of ``DTYPES``, made from the
            optimizer's fp32 copies if there are some; None: as the model ran.
        max_shard_size: As ``"5GB"``.

    Raises:
        OptionError: The output is not empty, or an argument is unusable.
        CheckpointError: A file is damaged (which), or a tensor was not saved.
    """
    _check_output(output)
    path, manifest, _ = open_checkpoint(folder)
    for name in _needed(manifest, with_masters=dtype is not None):
        check_file(path / name, manifest.files[name])
    optimizer = SavedOptimizer(path, manifest, manifest.plan)
    values = SavedValues(SavedModel(path, manifest), optimizer)
    chosen = _Chosen(values, manifest, dtype)
    temporary = output.with_name(f".{output.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        files, size = _write_shards(chosen, temporary, max_shard_size)
        if manifest.plan.config is not None:
            config = {**manifest.plan.config, "dtype": chosen.common_dtype()}
            text = json.dumps(config, indent=2, sort_keys=True) + "\n"
            write_durably(temporary / "config.json", text)
        if output.exists():
            output.rmdir()
        temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(
        step=manifest.global_steps,
        tensors=len(chosen.names),
        bytes=size,
        files=files,
        left_out=chosen.left_out,
    )


def read_weights(folder: CheckpointFolder) -> dict[str, torch.Tensor]:
    """Return the model's ``state_dict`` under its original names, as the model ran.

    Args:
        folder: The checkpoint.

    Raises:
        CheckpointError: A file is damaged (which), or a tensor was not saved.
    """
    path, manifest, _ = open_checkpoint(folder)
    for name in _needed(manifest, with_masters=False):
        check_file(path / name, manifest.files[name])
    optimizer = SavedOptimizer(path, manifest, manifest.plan)
    values = SavedValues(SavedModel(path, manifest), optimizer)
    chosen = _Chosen(values, manifest, None)
    return chosen.values([*chosen.names, *chosen.dropped])


def _check_output(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise OptionError(
            f"{output} is there already", hint="give a folder that is new or empty"
        )


def _needed(manifest: Manifest, *, with_masters: bool) -> list[str]:
    files = {layer.file for layer in manifest.layers}
    if with_masters:
        for stage in manifest.stages:
            files.update(stage.optimizer.files if stage.optimizer else ())
    return sorted(files)


class _Chosen:
    """The tensors to write, in the order of the model's ``state_dict``."""

    def __init__(
        self, values: SavedValues, manifest: Manifest, dtype: str | None
    ) -> None:
        self._values = values
        self._plan = manifest.plan
        self._dtype: torch.dtype | None = getattr(torch, dtype) if dtype else None
        plan, model = manifest.plan, values.model
        missing = [name for name in plan.aliases if name not in model]
        if missing:
            raise CheckpointError(
                f"the checkpoint has no value for {', '.join(missing[:5])}"
                f"{' …' if len(missing) > 5 else ''}",  # noqa: PLR2004 - as many are named
                hint="it was trained from a model without weights for what no segment "
                "uses; export cannot make them up",
            )
        entries = [n for n in plan.aliases if model.record(n).dtype != "object"]
        self.left_out = tuple(n for n in plan.aliases if n not in entries)
        # transformers ties by itself what its classes tie; others load every name.
        ties_itself = plan.config is not None
        self.names = [n for n in entries if not ties_itself or plan.aliases[n] == n]
        self.dropped = {n: plan.aliases[n] for n in entries if n not in self.names}

    def planned(self) -> dict[str, torch.Tensor]:
        """Return tensors without values, to divide among files."""
        return {
            name: torch.empty(
                self._values.model.record(name).shape,
                dtype=self._dtype_of(name),
                device="meta",
            )
            for name in self.names
        }

    def values(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return tensors with their values."""
        found = {}
        for name in names:
            value = self._values.as_dtype(name, self._dtype_of(name)).contiguous()
            # A second name of one tensor must have a memory of its own in the file.
            found[name] = value if self._plan.aliases[name] == name else value.clone()
        return found

    def common_dtype(self) -> str:
        """Return the dtype of most floating elements."""
        counts: dict[str, int] = {}
        for tensor in self.planned().values():
            if tensor.is_floating_point():
                name = str(tensor.dtype).removeprefix("torch.")
                counts[name] = counts.get(name, 0) + tensor.numel()
        return max(counts, key=lambda name: counts[name], default="float32")

    def _dtype_of(self, name: str) -> torch.dtype:
        stored: torch.dtype = getattr(torch, self._values.model.record(name).dtype)
        if self._dtype is None or not stored.is_floating_point:
            return stored
        return self._dtype


def _write_shards(
    chosen: _Chosen, folder: Path, max_shard_size: str
) -> tuple[tuple[str, ...], int]:
    from huggingface_hub import split_torch_state_dict_into_shards  # noqa: PLC0415
    from safetensors.torch import save_file  # noqa: PLC0415 - needed here alone

    planned = chosen.planned()
    try:
        split = split_torch_state_dict_into_shards(
            planned, filename_pattern=_PATTERN, max_shard_size=max_shard_size
        )
    except ValueError as error:
        raise OptionError(
            f"a shard of at most {max_shard_size!r}: {error}", hint="write it as 5GB"
        ) from error
    for file, names in split.filename_to_tensors.items():
        held = chosen.values(names)
        metadata = {"format": "pt", **chosen.dropped} if chosen.dropped else None
        save_file(held, folder / file, metadata=metadata or {"format": "pt"})
        del held
    if split.is_sharded:
        index: dict[str, Any] = {
            "metadata": {**split.metadata, **chosen.dropped},
            "weight_map": split.tensor_to_filename,
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        write_durably(folder / _INDEX, text)
    size = sum(tensor.numel() * tensor.element_size() for tensor in planned.values())
    return tuple(split.filename_to_tensors), size
