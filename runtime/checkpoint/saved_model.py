"""The weights and buffers of a checkpoint, by original name."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from partitioner.errors import CheckpointError
from partitioner.runtime.checkpoint.files import read_states
from partitioner.runtime.checkpoint.identity import name_in_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partitioner.runtime.checkpoint.manifest import (
        Manifest,
        PlanIdentity,
        TensorRecord,
    )

__all__ = ["UNPLACED", "SavedModel"]

UNPLACED = "unplaced-model_states.pt"
"""The file of tensors that no segment uses."""


class SavedModel:
    """Reads one layer's file at a time; its tensors are mapped from the disk.

    Args:
        folder: The checkpoint's folder.
        manifest: What it says about itself.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._plan = manifest.plan
        self._layers = manifest.layers
        self._place: dict[str, tuple[str, str]] = {}
        self.records: dict[str, TensorRecord] = {}
        for layer in manifest.layers:
            for name, record in layer.tensors.items():
                # A name that stands there itself counts before another name of it.
                self._place.setdefault(name, (layer.file, name))
                self.records.setdefault(name, record)
        for name, place in list(self._place.items()):
            first = self._plan.first_name(name)
            self._place.setdefault(first, place)
            self.records.setdefault(first, self.records[name])
        self._read = lru_cache(maxsize=1)(self._open)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint has a value for a name, or for its other names."""
        return name in self._place or self._plan.first_name(name) in self._place

    def record(self, name: str) -> TensorRecord:
        """Return shape and dtype of what a name stands for."""
        return self.records.get(name) or self.records[self._plan.first_name(name)]

    def value(self, name: str) -> Any:
        """Return what is stored under a name, usually a tensor, still on disk.

        Raises:
            CheckpointError: Nothing is, or the file cannot be read.
        """
        place = self._place.get(name) or self._place.get(self._plan.first_name(name))
        if place is None:
            raise CheckpointError(f"{self._folder} holds no tensor named {name!r}")
        file, stored = place
        return self._read(file)[name_in_file(stored)]

    def was_unplaced(self, name: str) -> bool:
        """Whether no segment used it."""
        place = self._place.get(name) or self._place.get(self._plan.first_name(name))
        return place is not None and place[0] == UNPLACED

    def split_ties(self, plan: PlanIdentity) -> list[str]:
        """Return what is one tensor in ``plan`` and was several in the checkpoint."""
        return [
            f"{name} and {first} are tied, and were not"
            for name, first in plan.aliases.items()
            if name in self
            and first in self
            and self._plan.first_name(name) != self._plan.first_name(first)
        ]

    def names_by_file(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each file's name with the names that are read from it."""
        for layer in self._layers:
            yield (
                layer.file,
                tuple(
                    name
                    for name in layer.tensors
                    if self._place[name] == (layer.file, name)
                ),
            )

    def _open(self, file: str) -> Any:
        return read_states(self._folder / file)
