"""What all variants of one run share: device, dtype, data, weights, configuration."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from benchmarks.speed.workloads import MicroBatch, Workload

__all__ = ["Setting", "shared"]

_SEED = 1
_RAM = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model on this run's ranks.

    Args:
        workload: The model and its data.
        device: This rank's.
        dtype: Of parameters and activations.
        micro_batches: Of one step.
        fused: The optimizer is torch's fused one.
        drawn: Micro-batches that differ, the first of those that there would be
            otherwise; None: all of a step.
    """

    workload: Workload
    device: torch.device
    dtype: torch.dtype
    micro_batches: int
    fused: bool = False
    drawn: int | None = None

    @cached_property
    def data(self) -> list[MicroBatch]:
        """One step's micro-batches in pageable memory, the same on all ranks."""
        torch.manual_seed(_SEED)
        count = self.micro_batches if self.drawn is None else self.drawn
        found = [self.workload.micro_batch() for _ in range(count)]
        return [
            ({name: self._cast(value) for name, value in inputs.items()}, labels)
            for inputs, labels in found
        ]

    @cached_property
    def data_on_device(self) -> list[MicroBatch]:
        """The same micro-batches on this rank's device."""
        return [
            (
                {name: value.to(self.device) for name, value in inputs.items()},
                labels.to(self.device),
            )
            for inputs, labels in self.data
        ]

    @cached_property
    def weights(self) -> Path:
        """File of the original's state, made by rank 0."""
        return Path(shared(self._make_weights))

    def free(self) -> None:
        """Give back the batches that are on the device."""
        vars(self).pop("data_on_device", None)

    def close(self) -> None:
        """Remove the weights' file, if it has been made; every rank must call."""
        dist.barrier()
        if dist.get_rank() == 0 and "weights" in vars(self):
            shutil.rmtree(self.weights.parent)

    @property
    def optimizer(self) -> dict[str, Any]:
        """DeepSpeed's entry for the optimizer, as ``Plan.ds_config`` would have it."""
        params = {"lr": 1e-4, "weight_decay": 0.01, "torch_adam": True}
        return {
            "type": "AdamW",
            "params": params | ({"fused": True} if self.fused else {}),
        }

    def config(self) -> dict[str, Any]:
        """Return DeepSpeed's configuration, as ``Plan.ds_config`` would have it."""
        samples = next(iter(self.data[0][0].values())).shape[0]
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": samples,
            "gradient_accumulation_steps": self.micro_batches,
            "optimizer": self.optimizer,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage": 0},
            **QUIET,
        }
        if self.dtype == torch.bfloat16:
            config["bf16"] = {"enabled": True}
        return config

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value

    def _make_weights(self) -> str:
        folder = tempfile.mkdtemp(dir=_RAM if os.access(_RAM, os.W_OK) else None)
        torch.manual_seed(_SEED)
        with torch.device(self.device):
            model = self.workload.model()
        file = Path(folder) / "model.safetensors"
        save_file(
            {
                name: self._cast(value).cpu().clone().contiguous()
                for name, value in model.state_dict().items()
            },
            file,
        )
        return str(file)


QUIET = {"steps_per_print": 10**9, "wall_clock_breakdown": False}


def shared(make: Callable[[], Any]) -> Any:
    """Return on all ranks what rank 0 makes."""
    told = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told)
    return told[0]
