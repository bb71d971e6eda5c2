"""What the engine says of a step on every rank: further losses, the gradient norm."""

from __future__ import annotations

from typing import Any

import torch
from deepspeed import comm
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.agreement import gather
from partitioner.runtime.gradients import clip, total_norm

__all__ = ["Reporting"]


class Reporting(PipelineEngine):
    """An engine whose every rank knows the same losses and the same gradient norm."""

    def start_reports(self) -> None:
        """Begin to report; once, when the engine is made."""
        self._names_agreed = False
        self.module.reports_losses = True

    def get_global_grad_norm(self) -> float | None:
        """Return the 2-norm of the last step's gradients over all stages.

        Before clipping, loss scaling taken out; infinite where the step was skipped
        for an overflow. None before the first step, and where ZeRO was told not to
        compute it.
        """
        norm: Any = self._global_grad_norm
        return norm.item() if isinstance(norm, Tensor) else norm

    def clip_fp32_gradients(self) -> None:
        """Clip, and keep the norm, which DeepSpeed forgets."""
        self._global_grad_norm = clip(
            list(self.module.parameters()),
            limit=self.gradient_clipping(),
            group=self.mpu.get_model_parallel_group(),
        )

    def _take_model_step(self, lr_kwargs: Any) -> None:
        mixed = self.fp16_enabled() or self.bfloat16_enabled()
        if not mixed and not self.zero_optimization() and self.gradient_clipping() <= 0:
            self._global_grad_norm = total_norm(
                list(self.module.parameters()), self.mpu.get_model_parallel_group()
            )
        # DeepSpeed's fp16 optimizer for any torch optimizer keeps the scaled norm.
        scaled = isinstance(self.optimizer, FP16_UnfusedOptimizer)
        scale = float(self.optimizer.loss_scale) if scaled else 1.0
        super()._take_model_step(lr_kwargs)
        if scaled:
            self._global_grad_norm /= scale

    def _aggregate_total_loss(self) -> Tensor:
        self._agree_on_names()
        if self.is_last_stage():
            loss: Tensor = super()._aggregate_total_loss()
            return loss
        return self._told_losses()

    def _told_losses(self) -> Tensor:
        """Receive the losses, as DeepSpeed does, but into numbers made on the device.

        DeepSpeed copies zeros to it, for which the host waits until the step has run.
        """
        names = self.module.additional_names
        losses = torch.zeros(2 + len(names), device=self.device)
        group = self.grid.get_pipe_parallel_group()
        comm.broadcast(losses, src=self._loss_stage_global_rank(), group=group)
        self.dp_group_loss, mean, *further = losses.unbind()
        if names:
            self.agg_additional_losses = dict(zip(names, further, strict=True))
        return mean

    def _agree_on_names(self) -> None:
        """Tell every stage how many further losses there are, and their names."""
        names = list(self.total_additional_losses or ())
        if not self._names_agreed:
            told = gather(names if self.is_last_stage() else None)
            found = [each for each in told if each is not None]
            if any(each != found[0] for each in found):
                raise RuntimeGuardError(
                    f"the replicas' losses report different names: {found}",
                    hint="report the same names in every micro-batch, 0 where there is "
                    "nothing to say",
                )
            self.module.additional_names = tuple(found[0])
            self._names_agreed = True
        elif self.is_last_stage() and tuple(names) != self.module.additional_names:
            raise RuntimeGuardError(
                f"the loss reports {', '.join(names) or 'nothing more'}; in the first "
                f"batch it reported {', '.join(self.module.additional_names) or 'no'}",
                hint="report the same names in every micro-batch, 0 where there is "
                "nothing to say",
            )
