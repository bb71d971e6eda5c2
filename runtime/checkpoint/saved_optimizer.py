"""The optimizer's state in a checkpoint, by original parameter name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partitioner.errors import CheckpointError
from partitioner.runtime.checkpoint.files import read_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partitioner.runtime.checkpoint.manifest import (
        Manifest,
        OptimizerRecord,
        PlanIdentity,
        Slot,
    )

__all__ = ["SavedOptimizer"]


_NAMES = {"params", "param_names"}


@dataclass(frozen=True, slots=True)
class _Place:
    stage: int
    group: int
    index: int
    slot: Slot


class SavedOptimizer:
    """Looks state up by name, wherever DeepSpeed has put it.

    Args:
        folder: The checkpoint's folder.
        manifest: What it says about itself.
        plan: Knows which names stand for one parameter.
    """

    def __init__(self, folder: Path, manifest: Manifest, plan: PlanIdentity) -> None:
        self._folder = folder
        self._plan = plan
        self._stages = [stage.optimizer for stage in manifest.stages]
        self._opened: dict[str, Any] = {}
        self._places: dict[str, _Place] = {}
        for stage, record in enumerate(self._stages):
            for group, content in enumerate(record.groups if record else ()):
                for index, slot in enumerate(content.slots):
                    place = _Place(stage, group, index, slot)
                    self._places.setdefault(slot.name, place)

    def __contains__(self, name: str) -> bool:
        """Whether the parameter was trained."""
        return self._find(name) is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was trained, as in a checkpoint made of weights."""
        return not self._places

    def place(self, name: str) -> tuple[int, int]:
        """Return stage and number of the parameter's group."""
        found = self._place(name)
        return found.stage, found.group

    def options(self, name: str) -> dict[str, Any]:
        """Return learning rate and the like of the parameter's group."""
        place = self._place(name)
        group = self._base(place, 0)["param_groups"][place.group]
        return {key: value for key, value in group.items() if key not in _NAMES}

    def master(self, name: str) -> Tensor | None:
        """Return the fp32 copy of a parameter; None: it was trained without one."""
        place = self._find(name)
        if place is None or self._record(place).kind == "parameters":
            return None
        if self._record(place).kind == "copies":
            copies: list[list[Tensor]] = self._content(place, 0)["fp32_groups"]
            return copies[place.group][place.index].detach().clone()
        return self._joined(place, lambda r: self._flat_masters(place, r)[place.group])

    def keys(self, name: str) -> tuple[str, ...]:
        """Return which state there is of a parameter; () for one not trained."""
        place = self._find(name)
        return () if place is None else tuple(self._entries(place, 0))

    def state(self, name: str, key: str) -> Any:
        """Return one part of a parameter's state: a tensor of its shape, or a scalar.

        Raises:
            CheckpointError: It lies in a flat tensor in a way that has no slice.
        """
        place = self._place(name)
        value = self._entries(place, 0)[key]
        if not isinstance(value, Tensor):
            return value
        if self._record(place).kind in {"parameters", "copies"} or value.dim() == 0:
            return value.detach().clone()
        partition = self._record(place).groups[place.group].partition
        if value.shape != (partition,):
            raise CheckpointError(
                f"the optimizer's {key!r} has shape {tuple(value.shape)}, and not one "
                f"number for each of the {partition} elements of its part: it cannot "
                "be cut by parameter",
                hint="load with load_optimizer_states=False",
            )
        return self._joined(place, lambda r: self._entries(place, r)[key])

    def _joined(self, place: _Place, part: Callable[[int], Tensor]) -> Tensor:
        """Return a parameter's elements out of the replicas' parts."""
        partition = self._record(place).groups[place.group].partition
        start, numel = place.slot.offset, math.prod(place.slot.shape)
        pieces, at = [], start
        while at < start + numel:
            replica, inside = divmod(at, partition)
            stop = min(start + numel, (replica + 1) * partition)
            pieces.append(part(replica).detach()[inside : inside + stop - at])
            at = stop
        whole = torch.cat(pieces) if pieces else torch.empty(0)
        return whole.reshape(place.slot.shape)

    def _entries(self, place: _Place, replica: int) -> dict[str, Any]:
        """Return the state of a parameter, or of the flat tensor in which it lies."""
        base = self._base(place, replica)
        flat = self._record(place).kind in {"flat", "partitioned"}
        numbers = base["param_groups"][place.group]["params"]
        number = numbers[0 if flat else place.index]
        found: dict[str, Any] = base["state"].get(number, {})
        return found

    def _flat_masters(self, place: _Place, replica: int) -> list[Tensor]:
        content = self._content(place, replica)
        key = "fp32_groups_flat"
        if self._record(place).kind == "partitioned":
            key = "single_partition_of_fp32_groups"
        found: list[Tensor] = content[key]
        return found

    def _base(self, place: _Place, replica: int) -> dict[str, Any]:
        """Return the ``state_dict`` of the user's optimizer."""
        kind, content = self._record(place).kind, self._content(place, replica)
        if kind == "parameters":
            return content
        key = "optimizer_state_dict"
        found: dict[str, Any] = content[
            "base_optimizer_state" if kind == "partitioned" else key
        ]
        return found

    def loss_scaler(self, stage: int, state: dict[str, Any]) -> Any:
        """Return a stage's loss scaler, or the dict that stands for it; None: none.

        Args:
            stage: The stage.
            state: What its engine's file holds.
        """
        record = self._stages[stage]
        if record is None:
            return None
        if record.kind == "partitioned":
            file = read_states(self._folder / record.files[0])
            return file["optimizer_state_dict"].get("loss_scaler")
        return None if record.kind == "parameters" else state["optimizer"]

    def _content(self, place: _Place, replica: int) -> dict[str, Any]:
        record = self._record(place)
        file = record.files[replica if record.kind == "partitioned" else 0]
        if file not in self._opened:
            whole = read_states(self._folder / file)
            partitioned = record.kind == "partitioned"
            key = "optimizer_state_dict" if partitioned else "optimizer"
            self._opened[file] = whole[key]
        found: dict[str, Any] = self._opened[file]
        return found

    def _find(self, name: str) -> _Place | None:
        return self._places.get(self._plan.first_name(name))

    def _place(self, name: str) -> _Place:
        return self._places[self._plan.first_name(name)]

    def _record(self, place: _Place) -> OptimizerRecord:
        record = self._stages[place.stage]
        assert record is not None
        return record
