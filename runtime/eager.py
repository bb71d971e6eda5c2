"""An engine whose messages travel by themselves, so that stages can be further ahead.

DeepSpeed's sends wait for the receiver, and so every exchange brings two stages to the
same moment: however many micro-batches lie between them, each is as late as the later
one. Here a stage sends and goes on, and has a receive posted for what comes next.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from partitioner.errors import OptionError
from partitioner.runtime.eager_schedule import EagerSchedule
from partitioner.runtime.pipeline_module import PartitionedPipelineModule

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Eager", "EagerPipelineModule"]


class EagerPipelineModule(PartitionedPipelineModule):
    """A pipeline whose engine is to run :class:`EagerSchedule`.

    Args:
        *args: As for :class:`PartitionedPipelineModule`.
        **options: As for :class:`PartitionedPipelineModule`.

    Raises:
        OptionError: ``dynamic_shape``: shapes would come with every message.
    """

    runs_ahead: ClassVar[bool] = True

    def __init__(self, *args: Any, **options: Any) -> None:
        if options.get("dynamic_shape"):
            raise OptionError(
                "dynamic_shape=True: under eager-1f1b a receive is posted before the "
                "shapes of what comes are known",
                hint='pad all micro-batches to one shape, or plan with schedule="1f1b"',
            )
        super().__init__(*args, **options)


class Eager(PipelineEngine):
    """An engine that runs :class:`EagerSchedule`, if it is told to.

    Its instructions have names of their own: else they would be inherited by engines
    that are not told to.
    """

    _INSTRUCTION_MAP: dict[Any, Any]
    MIXED_SHAPES: bool
    first_output_send: bool
    pipe_recv_buf: Any
    grad_layer: Any
    _eager = False

    def start_eager(self, *, wanted: bool) -> None:
        """Begin to run ahead, if wanted; once, when the engine is made.

        Args:
            wanted: Else the schedule is DeepSpeed's; every rank must say the same.
        """
        if not wanted:
            return
        self._eager = True
        self.MIXED_SHAPES = False
        # Messages of one communicator of NCCL's stand in line: each way has its own.
        waits = "gloo" not in dist.get_backend()
        self._upwards = _second_group(dist.group.WORLD) if waits else None
        self._INSTRUCTION_MAP = {
            **self._INSTRUCTION_MAP,
            schedule.BackwardPass: Eager._eager_backward_pass,
            schedule.SendActivation: Eager._eager_send_activations,
            schedule.RecvActivation: Eager._eager_recv_activations,
            schedule.SendGrad: Eager._eager_send_grads,
            schedule.RecvGrad: Eager._eager_recv_grads,
        }

    def _train_schedule(self) -> Any:
        if not self._eager:
            return super()._train_schedule()
        return EagerSchedule(self.micro_batches, self.num_stages, self.stage_id)

    def _exec_schedule(self, pipe_schedule: Any) -> None:
        runs_ahead = self._eager and self.module.training
        if runs_ahead:
            count = self.micro_batches
            self._from_before = _Inbox(self._rank_of(-1), self._upwards, count)
            self._from_after = _Inbox(self._rank_of(1), None, count)
            self._sent: deque[_Sent] = deque()
            self._sent_gradient = _Sent([], [])
        super()._exec_schedule(pipe_schedule)
        if runs_ahead:
            self._sent_gradient.wait()

    def _rank_of(self, offset: int) -> int:
        """Return the rank of the stage before or after, -1 where there is none."""
        stage = self.stage_id + offset
        if not 0 <= stage < self.num_stages:
            return -1
        rank: int = self.grid.stage_to_global(stage_id=stage)
        return rank

    def _eager_send_activations(self, buffer_id: int) -> None:
        if not self.module.training:
            super()._exec_send_activations(buffer_id)
            return
        outputs = self.pipe_buffers["outputs"][buffer_id]
        if self.first_output_send:
            self.first_output_send = False
            self._send_tensor_meta(outputs, self.next_stage)
        self._sent.append(_Sent.to(self._rank_of(1), _tensors(outputs), self._upwards))

    def _eager_recv_activations(self, buffer_id: int) -> None:
        if not self.module.training:
            super()._exec_recv_activations(buffer_id)
            return
        if self.pipe_recv_buf is None:
            self.pipe_recv_buf = self._recv_tensor_meta(self.prev_stage)
        buffers = _tensors(self.pipe_recv_buf)
        self._from_before.take(buffers)
        received = [buffer.clone().detach() for buffer in buffers]
        self._from_before.expect(buffers)
        for each in received:
            each.requires_grad = each.is_floating_point()
        alone = isinstance(self.pipe_recv_buf, Tensor)
        self.pipe_buffers["inputs"][buffer_id] = (
            received[0] if alone else tuple(received)
        )

    def _eager_send_grads(self, buffer_id: int) -> None:
        inputs = _tensors(self.pipe_buffers["inputs"][buffer_id])
        # One at a time is on its way: the plan's memory counts no more.
        self._sent_gradient.wait()
        gradients: list[Any] = [t.grad for t in inputs if t.is_floating_point()]
        self._sent_gradient = _Sent.to(self._rank_of(-1), gradients, None)
        self.pipe_buffers["inputs"][buffer_id] = None

    def _eager_recv_grads(self, buffer_id: int) -> None:
        outputs = self.pipe_buffers["outputs"][buffer_id]
        if self.grad_layer is None:
            # Not DeepSpeed's own: it receives both kinds of message into one buffer.
            like = [each for each in _tensors(outputs) if each.is_floating_point()]
            made = [torch.empty_like(each, requires_grad=False) for each in like]
            self.grad_layer = made[0] if isinstance(outputs, Tensor) else made
        self._from_after.take(_tensors(self.grad_layer))
        self._sent.popleft().wait()  # it came long ago: here is its gradient

    def _eager_backward_pass(self, buffer_id: int) -> None:
        super()._exec_backward_pass(buffer_id)
        if not self.is_last_stage():
            self._from_after.expect(_tensors(self.grad_layer))


class _Inbox:
    """What comes from one neighbour: one message at a time, expected early."""

    def __init__(
        self, rank: int, group: dist.ProcessGroup | None, messages: int
    ) -> None:
        self._rank = rank
        self._group = group
        self._left = messages
        self._works: list[Any] = []

    def expect(self, buffers: Sequence[Tensor]) -> None:
        """Let the next message, if there is one, come into these buffers."""
        if self._left:
            self._left -= 1
            self._works = [
                dist.irecv(buffer, self._rank, group=self._group) for buffer in buffers
            ]

    def take(self, buffers: Sequence[Tensor]) -> None:
        """Return when the next message is in these buffers."""
        if not self._works:
            self.expect(buffers)
        for work in self._works:
            work.wait()
        self._works = []


class _Sent:
    """A message on its way, whose tensors must stay until it has come."""

    def __init__(self, works: list[Any], tensors: list[Tensor]) -> None:
        self._works = works
        self._tensors = tensors

    @classmethod
    def to(
        cls, rank: int, tensors: Sequence[Tensor], group: dist.ProcessGroup | None
    ) -> _Sent:
        """Send and do not wait."""
        sent = [each.detach() for each in tensors]
        return cls([dist.isend(each, rank, group=group) for each in sent], sent)

    def wait(self) -> None:
        """Return when it has come, and let go of its tensors."""
        for work in self._works:
            work.wait()
        self._works, self._tensors = [], []


@lru_cache(maxsize=1)
def _second_group(_world: Any) -> dist.ProcessGroup:
    """Return another group of all ranks: one for all engines of a process.

    It ends with the world's. Ending it with an engine would have ranks wait for one
    another wherever an engine is thrown away.
    """
    group: dist.ProcessGroup = dist.new_group()
    return group


def _tensors(value: Any) -> Sequence[Tensor]:
    return (value,) if isinstance(value, Tensor) else tuple(value)
