"""An engine whose segments are replayed as CUDA graphs, if it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.pipe.engine import PipelineEngine

from partitioner.errors import OptionError
from partitioner.runtime.cuda_graphs.recorder import CudaRecorder, Recorder
from partitioner.runtime.cuda_graphs.replays import Replays

if TYPE_CHECKING:
    from partitioner.runtime.gradient_sums import GradientSums
    from partitioner.runtime.segment import SegmentProgram

__all__ = ["CudaGraphs"]


class CudaGraphs(PipelineEngine):
    """An engine whose segments are replayed, if it is told to."""

    def start_cuda_graphs(
        self, sums: GradientSums | None, *, recorder: Recorder | None = None
    ) -> None:
        """Begin to record and replay; once, when the engine is made.

        Args:
            sums: Where the optimizer sums gradients; None: not known.
            recorder: What records; None: CUDA.

        Raises:
            OptionError: There is no CUDA, or the optimizer takes gradients out of
                ``.grad`` after each micro-batch.
        """
        if sums is None:
            raise OptionError(
                f"cuda_graphs=True with {type(self.optimizer).__name__}: it takes the "
                "gradients of each micro-batch when its backward ends",
                hint="train without ZeRO, and without immediate_grad_update",
            )
        if recorder is None and get_accelerator().device_name() != "cuda":
            raise OptionError(
                "cuda_graphs=True, and the stages run on "
                f"{get_accelerator().device_name()}",
                hint="leave it out where there is no CUDA",
            )
        recorder = recorder or CudaRecorder()
        for program in self._programs():
            program.replays = Replays(program, sums, recorder)

    @property
    def without_cuda_graphs(self) -> dict[str, str]:
        """Segments of this rank that are not replayed → why."""
        return {
            program.name: program.replays.why_not
            for program in self._programs()
            if program.replays is not None and program.replays.why_not
        }

    def destroy(self) -> None:
        """Let go of everything, recordings included."""
        for program in self._programs():
            program.replays = None
        super().destroy()

    def _programs(self) -> list[SegmentProgram]:
        return [*self.module.segments(), *self.module.loss_programs()]

    def _exec_schedule(self, pipe_schedule: Any) -> None:
        if self.module.training:
            for program in self._programs():
                if program.replays is not None:
                    program.replays.begin_batch()
        super()._exec_schedule(pipe_schedule)
