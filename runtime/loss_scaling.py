"""Loss scaling for float16 in which what is divided is what was multiplied.

Two faults of DeepSpeed (0.19.8), both silent. ``DeepSpeedEngine.backward`` scales the
loss for its ZeRO optimizers alone: the float16 optimizers without ZeRO then divide
gradients that nobody has multiplied, so that plain SGD trains ``loss_scale`` times too
slowly and small gradients vanish. And every float16 optimizer lets its scale grow
before it divides by it: whenever the scale doubles, that step has half its gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe.engine import PipelineEngine

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossScaling"]


class LossScaling(PipelineEngine):
    """An engine whose float16 gradients carry the scale that its optimizer removes."""

    def start_loss_scaling(self) -> None:
        """Begin to scale where it is needed; once, when the engine is made."""
        self._scale_is_missing: bool | None = None
        unscaled = isinstance(self.optimizer, FP16_Optimizer | FP16_UnfusedOptimizer)
        if unscaled and self.fp16_enabled():
            self.module.loss_fn.gradient_hook = self._scaled

    def _take_model_step(self, lr_kwargs: Any) -> None:
        """Step, and let the scale grow only when its gradients have been divided."""
        update = getattr(self.optimizer, "_update_scale", None)
        if update is None or not self.fp16_enabled():
            super()._take_model_step(lr_kwargs)
            return
        grows_later: list[bool] = []

        def updated(overflow: bool) -> None:  # noqa: FBT001 - DeepSpeed's signature
            if overflow:
                update(overflow)
            else:
                grows_later.append(True)

        self.optimizer._update_scale = updated  # noqa: SLF001 - no public name
        try:
            super()._take_model_step(lr_kwargs)
        finally:
            del self.optimizer._update_scale  # noqa: SLF001
        if grows_later:
            update(False)

    def _scaled(self, gradient: Tensor) -> Tensor:
        """Return the loss's gradient, multiplied if the engine has not done so."""
        scale = float(self.optimizer.loss_scale)
        if self._scale_is_missing is None and scale != 1.0:
            # What arrives is 1/M or scale/M: a DeepSpeed that scales is left alone.
            plain, found = 1 / self.gradient_accumulation_steps(), gradient.item()
            self._scale_is_missing = abs(found - plain) < abs(found - plain * scale)
        return gradient * scale if self._scale_is_missing else gradient
