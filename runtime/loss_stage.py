"""The part of the pipeline module that knows which stage computes the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deepspeed.pipe import PipelineModule

from partitioner.runtime.loss import LossHead

if TYPE_CHECKING:
    from partitioner.runtime.segment import SegmentProgram

__all__ = ["LossStage"]


class LossStage(PipelineModule):
    """A pipeline module whose ``loss_fn`` is a :class:`LossHead`."""

    reports_losses: bool = False
    """Whether the engine tells every stage what the loss reports beside itself."""
    additional_names: tuple[str, ...] = ()
    """Names of the losses that the loss reports beside itself, on every stage."""

    def train(self, mode: bool = True) -> LossStage:  # noqa: FBT001, FBT002 - nn.Module's signature
        """Set the mode of the stage and of the loss, which is no module."""
        super().train(mode)
        if isinstance(self.loss_fn, LossHead):
            self.loss_fn.train(mode)
        return self

    def get_additional_losses(self) -> dict[str, Any] | None:
        """Return what the loss reports beside itself, for the engine.

        Every stage must name the same losses, which the loss knows on one alone: None
        but under an engine that tells the others.
        """
        if self.computes_loss():
            return (self.loss_fn.additional or None) if self.reports_losses else None
        return dict.fromkeys(self.additional_names, 0.0) or None

    def computes_loss(self) -> bool:
        """Whether this rank runs the last stage."""
        return bool(self.stage_id == self.num_stages - 1)

    def _hands_to_loss(self) -> bool:
        """Whether the loss reads what runs now, and nobody after it."""
        if not self.computes_loss():
            return False
        evaluates = isinstance(self.loss_fn, LossHead) and self.loss_fn.evaluation
        return torch.is_grad_enabled() or bool(evaluates)

    def loss_programs(self) -> list[SegmentProgram]:
        """Return the model's own part of the loss, if it is computed here."""
        program = self.loss_fn.program if self.computes_loss() else None
        return [] if program is None else [program]
