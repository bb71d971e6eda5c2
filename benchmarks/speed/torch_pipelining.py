"""The pipeline that torch itself makes of the original: exported, split, 1F1B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.speed.setting import Setting

__all__ = ["TorchRunner"]


class _Logits(nn.Module):
    """The original with a tensor for its output.

    Args:
        model: The original.
        names: Of its inputs, in order.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).logits
        return found


class _MasterAdamW:
    """AdamW on float32 copies, as DeepSpeed has it for narrower dtypes."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, fused: bool) -> None:
        self._own: list[Tensor] = [p for p in parameters if p.requires_grad]
        self._masters = [p.detach().float().clone() for p in self._own]
        self._steps = torch.optim.AdamW(
            self._masters, lr=1e-4, weight_decay=0.01, fused=fused or None
        )

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters, and drop their gradients."""
        for parameter, master in zip(self._own, self._masters, strict=True):
            gradient = parameter.grad
            master.grad = None if gradient is None else gradient.float()
            parameter.grad = None
        self._steps.step()
        torch._foreach_copy_(self._own, self._masters)


class TorchRunner:
    """Schedule1F1B over stages that ``torch.distributed.pipelining`` has split.

    Args:
        setting: The model and its data.
        paths: Module with which each stage but the first begins.
    """

    def __init__(self, setting: Setting, paths: Sequence[str]) -> None:
        self.cut: Sequence[int | str] = list(paths)
        inputs = [list(batch.values()) for batch, _ in setting.data_on_device]
        self._inputs = [torch.cat(column) for column in zip(*inputs, strict=True)]
        self._labels = torch.cat([labels for _, labels in setting.data_on_device])
        model = _Logits(_original(setting), list(setting.data[0][0]))
        split = {f"model.{path}": SplitPoint.BEGINNING for path in paths}
        pipe = pipeline(model, mb_args=tuple(inputs[0]), split_spec=split)
        stage = pipe.build_stage(dist.get_rank(), setting.device)
        self._schedule = Schedule1F1B(
            stage, setting.micro_batches, loss_fn=setting.workload.loss
        )
        self._optimizer = _MasterAdamW(stage.submod.parameters(), fused=setting.fused)
        self._device = setting.device

    def step(self) -> Tensor:
        """Train on one batch; the last rank alone knows the loss."""
        first, last = dist.get_rank() == 0, dist.get_rank() == dist.get_world_size() - 1
        losses: list[Tensor] = []
        inputs = self._inputs if first else []
        if last:
            self._schedule.step(*inputs, target=self._labels, losses=losses)
        else:
            self._schedule.step(*inputs)
        self._optimizer.step()
        zero = torch.zeros((), device=self._device)
        return torch.stack(losses).mean() if losses else zero

    def close(self) -> None:
        """Let go of the stage."""
        del self._schedule, self._optimizer, self._inputs, self._labels


def _original(setting: Setting) -> nn.Module:
    """Return the model with everybody's weights; its buffers keep their dtype."""
    with torch.device(setting.device):
        model = setting.workload.model()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(setting.dtype)
    model.load_state_dict(load_file(setting.weights, str(setting.device)))
    config: Any = model.config
    config.use_cache = False
    return model.train()
