"""1F1B that starts further ahead, for DeepSpeed's engine: instruction lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepspeed.runtime.pipe import schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EagerSchedule"]


class EagerSchedule(schedule.PipeSchedule):
    """Stage s of S begins with 2 (S - s) - 1 forwards, where 1F1B begins with S - s.

    Then one backward and one forward in turn, as 1F1B. So between two stages lie two
    micro-batches where there was one: a stage that is late, or a message, keeps its
    neighbour waiting only once both are used up. It needs sends that do not wait.

    Source: Zhuang et al., *On Optimizing the Communication of Model Parallelism*,
    MLSys 2023 (eager-1F1B).
    """

    def steps(self) -> Iterator[list[schedule.PipeInstruction]]:
        """Yield the instructions of one pass after the other."""
        for micro_batch in range(self.ahead):
            yield self._forward(micro_batch)
        for micro_batch in range(self.micro_batches):
            yield self._backward(micro_batch)
            if micro_batch + self.ahead < self.micro_batches:
                yield self._forward(micro_batch + self.ahead)
        yield [
            schedule.ReduceTiedGrads(),
            schedule.ReduceGrads(),
            schedule.OptimizerStep(),
        ]

    @property
    def ahead(self) -> int:
        """Forwards before the first backward: so many micro-batches are in flight."""
        most: int = min(2 * (self.stages - self.stage_id) - 1, self.micro_batches)
        return most

    def num_pipe_buffers(self) -> int:
        """Return how many micro-batches the engine must have room for."""
        return max(2, self.ahead)

    def _forward(self, micro_batch: int) -> list[schedule.PipeInstruction]:
        buffer = self._buffer_idx(micro_batch)
        found = []
        if not self.is_first_stage:
            found.append(schedule.RecvActivation(buffer))
        if self.is_first_stage or self.is_last_stage:
            found.append(schedule.LoadMicroBatch(buffer))
        found.append(schedule.ForwardPass(buffer))
        if not self.is_last_stage:
            found.append(schedule.SendActivation(buffer))
        return found

    def _backward(self, micro_batch: int) -> list[schedule.PipeInstruction]:
        buffer = self._buffer_idx(micro_batch)
        found = [] if self.is_last_stage else [schedule.RecvGrad(buffer)]
        found.append(schedule.BackwardPass(buffer))
        if not self.is_first_stage:
            found.append(schedule.SendGrad(buffer))
        return found
