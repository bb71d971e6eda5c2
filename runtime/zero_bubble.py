"""1F1B with weight gradients put off to where a stage would wait: ZB-H1.

Source: Qi et al., *Zero Bubble Pipeline Parallelism*, ICLR 2024, section 2.1: stage s
of S puts them off by s micro-batches. There messages travel by themselves. DeepSpeed's
block both stages, and then it matters on which side of an exchange the gradients are
made: before it, where the neighbour would come late to it; after it in the last S - s
micro-batches, for which the neighbour waits.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine

from partitioner.errors import OptionError
from partitioner.runtime.gradient_sums import GradientSums, gradient_sums
from partitioner.runtime.weight_gradients import PutOff, WeightGradients

__all__ = ["ZeroBubble"]


class ZeroBubble(PipelineEngine):
    """An engine whose later stages put weight gradients off, if it is told to."""

    _INSTRUCTION_MAP: dict[Any, Any]

    def start_zero_bubble(self, *, wanted: bool) -> None:
        """Begin to put weight gradients off, if wanted; once, when the engine is made.

        Args:
            wanted: Else this is 1F1B.

        Raises:
            OptionError: The optimizer takes gradients out of ``.grad`` after each
                micro-batch.
        """
        # Also without zero bubble: it makes DeepSpeed's own sums cheaper.
        self.sums = gradient_sums(self.optimizer)
        """Where the optimizer sums gradients; None: it is not known."""
        self._gradients = WeightGradients(self.sums or GradientSums())
        self._waiting: deque[PutOff] = deque()
        self._due: list[PutOff] = []
        self._backwards = 0
        if wanted:
            self._check_zero_bubble(knows_sums=self.sums is not None)
        if wanted:
            self._INSTRUCTION_MAP = {
                **self._INSTRUCTION_MAP,
                schedule.ForwardPass: ZeroBubble._exec_forward_pass,
                schedule.BackwardPass: ZeroBubble._exec_backward_pass,
                schedule.RecvGrad: ZeroBubble._exec_recv_grads,
                schedule.ReduceTiedGrads: ZeroBubble._exec_reduce_tied_grads,
            }

    def _check_zero_bubble(self, *, knows_sums: bool) -> None:
        if not knows_sums:
            raise OptionError(
                f"zero_bubble=True with {type(self.optimizer).__name__}: it takes the "
                "gradients of each micro-batch when its backward ends",
                hint="train without ZeRO, and without immediate_grad_update",
            )
        if any(segment.is_compiled for segment in self.module.segments()):
            raise OptionError(
                "zero_bubble=True with compiled stages: a compiled backward makes all "
                "gradients at once",
                hint="leave out one of zero_bubble and compile",
            )

    def _exec_schedule(self, pipe_schedule: Any) -> None:
        self._waiting.clear()
        self._due.clear()
        self._backwards = 0
        super()._exec_schedule(pipe_schedule)

    def _exec_forward_pass(self, buffer_id: int) -> None:
        self._make(self._due)
        # The first stage puts them off by nothing: what autograd does costs less there.
        weights = self.module.parameters() if self.stage_id else ()
        with self._gradients.put_off(weights):
            super()._exec_forward_pass(buffer_id)

    def _exec_backward_pass(self, buffer_id: int) -> None:
        self._gradients.into = PutOff()
        self._waiting.append(self._gradients.into)
        super()._exec_backward_pass(buffer_id)
        self._backwards += 1
        if len(self._waiting) > self.stage_id:
            self._due.append(self._waiting.popleft())
        if self.micro_batches - self._backwards >= self.num_stages - self.stage_id:
            self._make(self._due)

    def _exec_recv_grads(self, buffer_id: int) -> None:
        self._make(self._due)
        super()._exec_recv_grads(buffer_id)

    def _exec_reduce_tied_grads(self) -> None:
        self._make([*self._due, *self._waiting])
        self._due.clear()
        self._waiting.clear()
        super()._exec_reduce_tied_grads()

    @staticmethod
    def _make(gradients: list[PutOff]) -> None:
        for each in gradients:
            each.run()
        gradients.clear()
