"""DualPipeV: every rank runs two of the plan's stages, one on the way out, one back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from deepspeed.runtime.pipe.dualpipev import DualPipeVModule

from partitioner.errors import OptionError
from partitioner.runtime.pipeline_module import PartitionedPipelineModule

if TYPE_CHECKING:
    from torch import nn

__all__ = ["PartitionedDualPipeVModule"]


class PartitionedDualPipeVModule(PartitionedPipelineModule, DualPipeVModule):
    """Rank r of S runs the stages r and 2S - 1 - r of a plan.

    So rank 0 has the first stage and the last one: it loads the data and computes the
    loss. A parameter that two stages of one rank share is there once; between ranks
    its gradients are summed as in any pipeline.

    Args:
        *args: As for :class:`PartitionedPipelineModule`.
        **options: As for :class:`PartitionedPipelineModule`.

    Raises:
        OptionError: ``dynamic_shape``, which DeepSpeed's DualPipeV does not have.
    """

    stages_per_rank: ClassVar[int] = 2

    def __init__(self, *args: Any, **options: Any) -> None:
        if options.get("dynamic_shape"):
            raise OptionError(
                "dynamic_shape=True: under dualpipev the stages exchange their shapes "
                "once",
                hint='pad all micro-batches to one shape, or plan with schedule="1f1b"',
            )
        super().__init__(*args, **options)

    def local_layers(self) -> list[nn.Module]:
        """Return the segments of both stages of this rank, in order."""
        return [layer for layers in self.phase_funcs for layer in layers]

    def _partition_layers(self, method: str = "uniform") -> None:
        super()._partition_layers(method)
        self.num_stages = len(self.parts) - 1
        twin = self._twin(self.stage_id)
        self.phase_bounds = [
            (self._local_start, self._local_stop),
            (self.parts[twin], self.parts[twin + 1]),
        ]

    def _rank_of(self, stage: int) -> int:
        return min(stage, self._twin(stage))

    def _twin(self, stage: int) -> int:
        """Return the stage that runs on the same rank."""
        return len(self._planned_parts) - 2 - stage

    def _receives_inputs(self) -> bool:
        return bool(self.stage_id == 0 and self.active_phase == 0)

    def computes_loss(self) -> bool:
        """Whether this rank runs the last stage."""
        return bool(self.stage_id == 0)

    def _hands_to_loss(self) -> bool:
        return super()._hands_to_loss() and bool(self.active_phase == 1)
