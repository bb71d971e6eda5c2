"""Checkpoints of Lightning's that hold a pipeline: folders of the training runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.errors import CheckpointError, OptionError
from partitioner.lightning.weights import spread, weights_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_lightning.strategies import ParallelStrategy as Base

    from partitioner.lightning.library import Library
    from partitioner.lightning.training import TrainingStep
else:
    Base = object

__all__ = ["Checkpointing"]

_TAG = "pipeline"


class Checkpointing(Base):
    """The half of the strategy that saves and loads.

    A checkpoint is a folder that the engine writes (weights, optimizer, random numbers,
    by original names), with what Lightning keeps (loops, callbacks, schedules) inside.
    One of another number of stages is loaded as any other, and so is a file that
    Lightning saved in one process.
    """

    lightning: Library
    engine: Any
    _training: TrainingStep | None
    _loads_file = False

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """The engine must be there to load into."""
        return True

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning hands the optimizer's state over: from its own files."""
        return self._loads_file

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return nothing: the engine saves the weights."""
        return {}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:  # noqa: ARG002 - Lightning's signature
        """Return nothing: the engine saves the optimizer's state."""
        return {}

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        filepath: Any,
        storage_options: Any | None = None,
    ) -> None:
        """Save; every rank must call.

        Args:
            checkpoint: What Lightning keeps.
            filepath: The folder; the file, where only weights are wanted or the run is
                over.
            storage_options: Not supported.

        Raises:
            OptionError: ``storage_options`` are given.
            CheckpointError: Something cannot be written; the same on all ranks.
        """
        if storage_options is not None:
            raise OptionError(
                "storage_options: the ranks write into a folder themselves",
                hint="save to a file system that all ranks see, and copy from there",
            )
        path = Path(self.broadcast(str(filepath)))
        if self.engine is None or "optimizer_states" not in checkpoint:
            if self.engine is not None:
                spread(self.engine, self.lightning_module)
            checkpoint.pop("optimizer_states", None)  # a run cannot go on from here
            checkpoint["state_dict"] = self.lightning_module.state_dict()
            super().save_checkpoint(checkpoint, path)
            return
        own = {k: v for k, v in checkpoint.items() if k not in _NOT_KEPT}
        self.engine.save_checkpoint(path, tag=_TAG, client_state=own)

    def load_checkpoint(
        self,
        checkpoint_path: Any,
        weights_only: bool | None = None,  # noqa: FBT001 - Lightning's signature
    ) -> dict[str, Any]:
        """Load a pipeline's folder or Lightning's own file; every rank must call.

        Raises:
            CheckpointError: There is none, or it is damaged.
            OptionError: The file's optimizer cannot be taken over in this precision.
        """
        path = Path(checkpoint_path)
        self._loads_file = path.is_file()
        if self._loads_file:
            if self._training is not None:
                self._training.check_takes_files()
            found: dict[str, Any] = super().load_checkpoint(path, weights_only)
            return found
        if self._training is None:
            return {
                "pytorch-lightning_version": self.lightning.version,
                "state_dict": weights_in(path),
            }
        _, kept = self.engine.load_checkpoint(
            path,
            load_module_strict=self.lightning_module.strict_loading,
            load_lr_scheduler_states=False,
        )
        if kept is None:
            raise CheckpointError(
                f"{path} holds no checkpoint of a pipeline",
                hint="give the folder that the Trainer saved, or a file of Lightning's",
            )
        return dict(kept)

    def load_model_state_dict(
        self,
        checkpoint: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - Lightning's signature
    ) -> None:
        """Take weights from a file; the engine has taken those of a folder."""
        if "state_dict" in checkpoint:
            # This rank's stage holds the very parameters of the module.
            state = checkpoint["state_dict"]
            self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the optimizer's state from a file."""
        if self._training is not None:
            (state,) = checkpoint["optimizer_states"]
            self._training.optimizer.load(state, self.lightning_module)


_NOT_KEPT = ("state_dict", "optimizer_states")
