"""How far a run had come: steps, schedule, loss scale, generators, data position."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from torch import Tensor

from partitioner.errors import PlanMismatchError
from partitioner.runtime.checkpoint.files import read_states
from partitioner.runtime.checkpoint.process_state import restore_random_states
from partitioner.runtime.checkpoint.save import ENGINE_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from partitioner.runtime.checkpoint.manifest import Manifest
    from partitioner.runtime.checkpoint.optimizers import LiveOptimizer
    from partitioner.runtime.checkpoint.process_state import Stateful
    from partitioner.runtime.checkpoint.saved_optimizer import SavedOptimizer

__all__ = ["Progress", "SavedProgress", "Wanted", "apply_progress", "read_progress"]

_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to load beside the weights."""

    optimizer: bool = True
    scheduler: bool = True
    progress: bool = True
    data: bool = True
    random: bool = True
    strict: bool = True


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an engine takes over beside weights and optimizer state."""

    counters: dict[str, int] = field(default_factory=dict)
    scheduler: dict[str, Any] | None = None
    scale: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] | None = None
    attached: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] | None = None
    client_state: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class SavedProgress:
    """The engines' and the processes' files of a checkpoint.

    Args:
        folder: The checkpoint's folder.
        manifest: What it says about itself.
        optimizer: The optimizer's state in it.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, optimizer: SavedOptimizer
    ) -> None:
        self.manifest = manifest
        self.optimizer = optimizer
        self._read = lru_cache(maxsize=None)(lambda file: read_states(folder / file))

    def engine(self, stage: int) -> dict[str, Any]:
        """Return what the engine of a stage wrote."""
        found: dict[str, Any] = self._read(self.manifest.stages[stage].file)
        return found

    def process(self, *, stage: int, replica: int) -> dict[str, Any] | None:
        """Return what a process wrote; None: there was none, or it wrote nothing."""
        for record in self.manifest.ranks:
            if (record.stage, record.replica) == (stage, replica):
                found: dict[str, Any] = self._read(record.file)
                return found
        return None


def read_progress(
    engine: Any,
    saved: SavedProgress,
    *,
    live: LiveOptimizer | None,
    wanted: Wanted,
    attached: Mapping[str, Stateful],
) -> Progress:
    """Collect what this rank's engine takes over; changes nothing.

    Raises:
        PlanMismatchError: An attached object's position has no meaning for another
            number of replicas.
    """
    manifest, notes = saved.manifest, []
    same = len(manifest.stages) == engine.grid.pipe_parallel_size
    stage = engine.stage_id if same else 0
    state = saved.engine(stage)
    scheduler = None
    if wanted.scheduler and engine.lr_scheduler is not None:
        scheduler = _scheduler(saved, live, stage)
        if scheduler is None:
            notes.append("no learning-rate schedule was saved: it starts anew")
    random = _random(engine, saved, same_stages=same) if wanted.random else None
    if wanted.random and random is None and manifest.ranks:
        notes.append(
            f"it was saved by {len(manifest.stages)} x {manifest.replicas} processes "
            "(pipeline x data): random generators are not taken over by others"
        )
    counters = ("global_steps", "global_samples", "skipped_steps")
    return Progress(
        counters={key: state[key] for key in counters} if wanted.progress else {},
        scheduler=scheduler,
        scale=_scale(saved, stage) if wanted.optimizer else {},
        random=random,
        attached=_attached(engine, saved, attached, notes) if wanted.data else {},
        loss=_loss(saved),
        client_state={k: v for k, v in state.items() if k not in ENGINE_KEYS},
        notes=notes,
    )


def apply_progress(
    engine: Any, progress: Progress, attached: Mapping[str, Stateful]
) -> None:
    """Let an engine go on where another has stopped."""
    for name, value in progress.counters.items():
        setattr(engine, name, value)
    if progress.scheduler is not None:
        engine.lr_scheduler.load_state_dict(progress.scheduler)
    target = _scaler_of(engine.optimizer)
    for name, value in progress.scale.items():
        if hasattr(target, name):
            setattr(target, name, value)
    for name, state in progress.attached.items():
        attached[name].load_state_dict(state)
    engine.module.loss_fn.load_user_loss_state(progress.loss)
    if progress.random is not None:
        restore_random_states(progress.random)


def _scheduler(
    saved: SavedProgress, live: LiveOptimizer | None, stage: int
) -> dict[str, Any] | None:
    """Return the schedule's state, its lists by parameter group in this stage's order.

    DeepSpeed drops groups without parameters, so that stages may differ in groups.
    """
    state: dict[str, Any] | None = saved.engine(stage)["lr_scheduler"]
    if state is None or live is None or saved.optimizer.is_empty:
        return state
    trained = [
        [slot.name for slot in group.slots if slot.name in saved.optimizer]
        for group in live.groups
    ]
    if not all(trained):
        return state
    places = [saved.optimizer.place(names[0]) for names in trained]
    record = saved.manifest.stages[stage].optimizer
    groups = len(record.groups) if record else 0
    if [group for _, group in places] == list(range(groups)):
        return state
    return {
        key: [saved.engine(at)["lr_scheduler"][key][group] for at, group in places]
        if _is_by_group(value, groups)
        else value
        for key, value in state.items()
    }


def _is_by_group(value: Any, groups: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == groups
        and all(isinstance(item, int | float | Tensor) for item in value)
    )


def _scale(saved: SavedProgress, stage: int) -> dict[str, Any]:
    """Return where a dynamic loss scale stands; {}: there was none."""
    found = saved.optimizer.loss_scaler(stage, saved.engine(stage))
    if isinstance(found, DynamicLossScaler):
        return {key: getattr(found, key) for key in _SCALE if hasattr(found, key)}
    if isinstance(found, dict) and found.get("dynamic_loss_scale"):
        return {key: found[key] for key in _SCALE if key in found}
    return {}


def _scaler_of(optimizer: Any) -> Any:
    """Return the object that holds a dynamic loss scale; None: there is none."""
    scaler = getattr(optimizer, "loss_scaler", None)
    if isinstance(scaler, DynamicLossScaler):
        return scaler
    config = getattr(optimizer, "loss_scale_config", None)
    return config if getattr(config, "dynamic_loss_scale", False) else None


def _loss(saved: SavedProgress) -> dict[str, Any] | None:
    """Return the state of the user's loss, which one stage wrote."""
    processes = [
        saved.process(stage=stage, replica=0) or {}
        for stage in range(len(saved.manifest.stages))
    ]
    found = (each["loss"] for each in processes if each.get("loss") is not None)
    return next(found, None)


def _random(
    engine: Any, saved: SavedProgress, *, same_stages: bool
) -> dict[str, Any] | None:
    replicas = engine.grid.get_data_parallel_world_size()
    if not same_stages or saved.manifest.replicas != replicas:
        return None
    replica = engine.grid.get_data_parallel_id()
    process = saved.process(stage=engine.stage_id, replica=replica)
    return process and process["random"]


def _attached(
    engine: Any,
    saved: SavedProgress,
    attached: Mapping[str, Stateful],
    notes: list[str],
) -> dict[str, Any]:
    """Return the position for each attached object: that of the same replica.

    It is the first stage's, which reads data; those between do not.
    """
    processes = [
        saved.process(stage=0, replica=replica)
        for replica in range(saved.manifest.replicas)
    ]
    kept = [process["attached"] for process in processes if process is not None]
    found = {}
    for name in attached:
        states = [states[name] for states in kept if name in states]
        if states:
            found[name] = _of_replica(name, states, engine)
        elif kept:
            notes.append(f"no position of {name!r} was saved: it stays where it is")
    left = sorted({name for states in kept for name in states} - set(attached))
    notes += [f"nothing takes over the saved position of {name!r}" for name in left]
    return found


def _of_replica(name: str, states: list[Any], engine: Any) -> Any:
    replicas = engine.grid.get_data_parallel_world_size()
    if len(states) == replicas:
        return states[engine.grid.get_data_parallel_id()]
    if all(_same(state, states[0]) for state in states):
        return states[0]
    raise PlanMismatchError(
        f"{name!r} stood at another place on each of {len(states)} replicas, and there "
        f"are {replicas} now",
        hint="use as many replicas, or load with load_data_states=False",
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same(one[key], other[key]) for key in one
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
