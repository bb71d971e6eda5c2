"""A checkpoint's optimizer state in the order of this stage's optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from partitioner.errors import CheckpointError, PlanMismatchError
from partitioner.runtime.checkpoint.identity import is_placeholder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partitioner.runtime.checkpoint.manifest import GroupRecord, Slot
    from partitioner.runtime.checkpoint.optimizers import LiveOptimizer
    from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer

__all__ = ["OptimizerContent", "apply", "assemble", "assemble_masters"]


@dataclass(frozen=True, kw_only=True)
class OptimizerContent:
    """What replaces the state of an optimizer: for ``load_state_dict`` of the base."""

    state: dict[int, dict[str, Any]]
    options: tuple[dict[str, Any], ...]


def assemble(live: LiveOptimizer, saved: SavedOptimizer) -> OptimizerContent:
    """Collect state and options for an optimizer; changes nothing.

    Raises:
        PlanMismatchError: A group's parameters had different options.
        CheckpointError: State cannot be cut by parameter.
    """
    found: list[dict[str, Any]] = []
    for group in live.groups:
        if live.kind in {"parameters", "copies"}:
            found += [_own_state(slot.name, saved) for slot in group.slots]
        else:
            found.append(_flat_state(group, live.replica, saved))
    options = tuple(
        _options(group, number, saved) for number, group in enumerate(live.groups)
    )
    state = {number: entries for number, entries in enumerate(found) if entries}
    return OptimizerContent(state=state, options=options)


def _own_state(name: str, saved: SavedOptimizer) -> dict[str, Any]:
    return {key: saved.state(name, key) for key in saved.keys(name)}


def assemble_masters(
    live: LiveOptimizer, value: Callable[[str], Tensor]
) -> tuple[tuple[Tensor, ...], ...]:
    """Collect the fp32 copies for an optimizer that has some.

    Args:
        live: The optimizer.
        value: Returns a parameter's most precise value.
    """
    if not live.masters:
        return ()
    if live.kind == "copies":
        return tuple(
            tuple(_master(slot, value) for slot in group.slots) for group in live.groups
        )
    return tuple(
        (_flat(group, live.replica, lambda slot: _master(slot, value)),)
        for group in live.groups
    )


def _master(slot: Slot, value: Callable[[str], Tensor]) -> Tensor:
    if is_placeholder(slot.name):
        return torch.zeros(slot.shape)
    return value(slot.name).float()


def apply(
    live: LiveOptimizer,
    content: OptimizerContent | None,
    masters: Sequence[Sequence[Tensor]],
) -> None:
    """Put the collected state into an optimizer."""
    if content is not None:
        groups = live.base.state_dict()["param_groups"]
        live.base.load_state_dict(
            {
                "state": content.state,
                "param_groups": [
                    {**group, **options, "params": group["params"]}
                    for group, options in zip(groups, content.options, strict=True)
                ],
            }
        )
    with torch.no_grad():
        for mine, values in zip(live.masters, masters, strict=True):
            for master, value in zip(mine, values, strict=True):
                master.copy_(value)
    live.relink()


def _options(group: GroupRecord, number: int, saved: SavedOptimizer) -> dict[str, Any]:
    """Return what all parameters of a group had in common: everything, or an error."""
    common: dict[str, Any] | None = None
    first = ""
    for slot in group.slots:
        if slot.name not in saved:
            continue
        options = saved.options(slot.name)
        if common is None:
            common, first = options, slot.name
        elif options != common:
            keys = sorted(k for k in common if options.get(k) != common[k])
            raise PlanMismatchError(
                f"parameter group {number} joins {first!r} and {slot.name!r}, which "
                f"were trained with different {', '.join(keys) or 'options'}",
                hint="form the groups as in the run that was saved, or load with "
                "load_optimizer_states=False",
            )
    return common or {}


def _flat_state(
    group: GroupRecord, replica: int, saved: SavedOptimizer
) -> dict[str, Any]:
    """Lay the states of a group's parameters one after the other, for one replica."""
    having: dict[str, list[Slot]] = {}
    for slot in group.slots:
        for key in saved.keys(slot.name):
            having.setdefault(key, []).append(slot)
    return {
        key: _agreed(key, slots, saved)
        if _is_scalar(key, slots[0], saved)
        else _flat(group, replica, partial(_elements, key, saved))
        for key, slots in having.items()
    }


def _is_scalar(key: str, slot: Slot, saved: SavedOptimizer) -> bool:
    value = saved.state(slot.name, key)
    if not isinstance(value, Tensor):
        return True
    return value.dim() == 0 and (slot.shape != () or key == "step")


def _agreed(key: str, slots: Sequence[Slot], saved: SavedOptimizer) -> Any:
    first = slots[0].name
    value = saved.state(first, key)
    for slot in slots[1:]:
        other = saved.state(slot.name, key)
        if other != value:
            raise CheckpointError(
                f"the optimizer's {key!r} is {value} for {first!r} and {other} for "
                f"{slot.name!r}, which now lie in one flat tensor and share it",
                hint="load with the ZeRO stage and precision of the run that was "
                "saved, or with load_optimizer_states=False",
            )
    return value


def _elements(key: str, saved: SavedOptimizer, slot: Slot) -> Tensor | None:
    """Return a parameter's part of a flat state; None: it has none yet."""
    if key not in saved.keys(slot.name):
        return None
    value = saved.state(slot.name, key)
    if not isinstance(value, Tensor) or tuple(value.shape) != slot.shape:
        raise CheckpointError(
            f"the optimizer's {key!r} of {slot.name!r} has not the parameter's shape, "
            "and cannot lie in a flat tensor",
            hint="load with load_optimizer_states=False",
        )
    return value


def _flat(
    group: GroupRecord, replica: int, value: Callable[[Slot], Tensor | None]
) -> Tensor:
    """Return one replica's part of the flat tensor; zeros where nothing lies."""
    low = replica * group.partition
    high = low + group.partition
    part: Tensor | None = None
    for slot in group.slots:
        start, stop = slot.offset, slot.offset + math.prod(slot.shape)
        if stop <= low or start >= high:
            continue
        whole = value(slot)
        if whole is None:
            continue
        if part is None:
            part = torch.zeros(group.partition, dtype=whole.dtype)
        begin, end = max(start, low), min(stop, high)
        piece = whole.detach().reshape(-1)[begin - start : end - start]
        part[begin - low : end - low] = piece
    return torch.zeros(group.partition) if part is None else part
