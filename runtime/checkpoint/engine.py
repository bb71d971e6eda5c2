"""The engine's half that saves and loads checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.errors import OptionError
from partitioner.runtime.agreement import raise_on_all_ranks
from partitioner.runtime.checkpoint.folders import CheckpointFolder, latest_tag
from partitioner.runtime.checkpoint.load import load
from partitioner.runtime.checkpoint.process_state import Stateful
from partitioner.runtime.checkpoint.progress import Wanted
from partitioner.runtime.checkpoint.save import save

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from partitioner.runtime.checkpoint.identity import PlanRecord

__all__ = ["CheckpointingEngine"]

_log = logging.getLogger("partitioner")


class CheckpointingEngine:
    """Replaces DeepSpeed's saving and loading; to be mixed into its engine."""

    global_rank: int
    global_steps: int
    module: Any

    def attach(self, name: str, item: Stateful) -> None:
        """Keep an object's position in every checkpoint: a data loader, a sampler.

        Args:
            name: Under what; the same in every run.
            item: Has ``state_dict()`` and ``load_state_dict()``.

        Raises:
            OptionError: It has not.
        """
        if not isinstance(item, Stateful):
            raise OptionError(
                f"{name!r} is a {type(item).__name__} without state_dict() and "
                "load_state_dict()",
                hint="give it both; what they hold goes into every checkpoint",
            )
        self._attached_items()[name] = item

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,  # noqa: FBT001, FBT002 - DeepSpeed's signature
        exclude_frozen_parameters: bool = False,  # noqa: FBT001, FBT002
    ) -> bool:
        """Save everything that resuming needs; every rank must call.

        The files are DeepSpeed's own, with a manifest. They are written aside, and take
        their place when all ranks have finished; then ``latest`` is replaced.

        Args:
            save_dir: The folder of all tags.
            tag: The checkpoint's name; None: ``global_step`` and the number of steps.
            client_state: The user's own: tensors and plain data.
            save_latest: Loading without a tag finds this one.
            exclude_frozen_parameters: Not supported.

        Returns:
            True.

        Raises:
            OptionError: An argument is unusable.
            CheckpointError: Something cannot be written; the same on all ranks.
            PlanMismatchError: Ranks save different things.
        """
        if exclude_frozen_parameters:
            raise OptionError(
                "exclude_frozen_parameters: such a checkpoint could not be loaded by "
                "another plan",
                hint="leave it out",
            )
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        save(
            self,
            self._plan_record(),
            CheckpointFolder(Path(save_dir), name),
            client_state=client_state or {},
            attached=self._attached_items(),
            latest=save_latest,
        )
        return True

    def load_checkpoint(  # noqa: PLR0917 - DeepSpeed's signature
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,  # noqa: FBT001, FBT002 - DeepSpeed's signature
        load_optimizer_states: bool = True,  # noqa: FBT001, FBT002
        load_lr_scheduler_states: bool = True,  # noqa: FBT001, FBT002
        load_module_only: bool = False,  # noqa: FBT001, FBT002
        custom_load_fn: Callable[..., Any] | None = None,
        *,
        load_data_states: bool = True,
        load_random_states: bool = True,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Resume from a checkpoint, of this plan or another one of the same model.

        Every file is proven to be what was written before anything is changed.

        Args:
            load_dir: The folder of all tags.
            tag: Which one; None: the one that ``latest`` names.
            load_module_strict: The checkpoint and the model must have the same names.
            load_optimizer_states: Also the optimizer's state, options and loss scale.
            load_lr_scheduler_states: Also the learning-rate schedule.
            load_module_only: The weights and buffers alone.
            custom_load_fn: Not supported.
            load_data_states: Also the positions of what was attached.
            load_random_states: Also the random generators, at an unchanged number of
                stages and replicas.

        Returns:
            The checkpoint's folder and the ``client_state``; (None, None) if no tag is
            given and nothing was saved yet.

        Raises:
            OptionError: An argument is unusable.
            CheckpointError: A file is missing or damaged (says which), or optimizer
                state cannot be converted; the same on all ranks.
            PlanMismatchError: The checkpoint is of another model.
        """
        if custom_load_fn is not None:
            raise OptionError(
                "custom_load_fn is not supported",
                hint="change the model before plan.initialize(), or after loading",
            )
        root = Path(load_dir)
        with raise_on_all_ranks("looking for a checkpoint"):
            name = latest_tag(root) if tag is None else str(tag)
        if name is None:
            _log.warning("no checkpoint in %s yet: the run starts anew", root)
            return None, None
        rest = not load_module_only
        path, client_state, notes = load(
            self,
            self._plan_record(),
            CheckpointFolder(root, name),
            wanted=Wanted(
                optimizer=load_optimizer_states and rest,
                scheduler=load_lr_scheduler_states and rest,
                progress=rest,
                data=load_data_states and rest,
                random=load_random_states and rest,
                strict=load_module_strict,
            ),
            attached=self._attached_items(),
        )
        if self.global_rank == 0:
            for note in notes:
                _log.warning("%s: %s", path, note)
        return path, client_state

    def _attached_items(self) -> dict[str, Stateful]:
        # DeepSpeed's engine exists before it becomes one of this class.
        found: dict[str, Stateful] = self.__dict__.setdefault("_attached", {})
        return found

    def _plan_record(self) -> PlanRecord:
        record: PlanRecord | None = getattr(self.module, "plan_record", None)
        if record is None:
            raise OptionError(
                "this engine's module was not built by a plan",
                hint="make the engine by plan.initialize()",
            )
        return record
