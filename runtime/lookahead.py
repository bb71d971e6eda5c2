"""Load the micro-batches of a batch ahead, and let all ranks agree before it starts."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from deepspeed import comm
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor
from torch.utils import _pytree as pytree

from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.runtime.agreement import raise_on_all_ranks
from partitioner.runtime.data import Batches
from partitioner.runtime.host_group import HostGroup
from partitioner.runtime.memory_order import memory_order
from partitioner.runtime.prefetch import Prefetched
from partitioner.runtime.token_weights import TokenCounter, weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from partitioner.runtime.loss import LossHead

__all__ = ["LookAhead"]

_FAILED = -1
_SAME, _NEW, _MIXED = 0, 1, 2
"""How the inputs' shapes compare: with the last batch, and among themselves."""


class LookAhead(PipelineEngine):
    """The first and the last stage load a whole batch before its schedule starts.

    So all ranks learn in time that the data have ended, that a batch is refused, that
    shapes have changed since the last batch (DeepSpeed tells the next stage the shapes
    of its tensors once, and hangs when they change), and how many tokens there are.
    """

    MIXED_SHAPES = True
    """Whether micro-batches of one batch may differ in shape."""
    dynamic_shape: bool

    def look_ahead(self, token_weighted: bool | Callable[[Any], Any]) -> None:  # noqa: FBT001 - initialize's own argument
        """Start looking ahead; once, when the engine is made.

        Args:
            token_weighted: Count tokens: by the loss, or by this function.

        Raises:
            OptionError: The loss does not show what it averages over.
        """
        self.hosts = HostGroup()
        self._loaded: list[Any] = []
        self._ahead = Prefetched(self.device)
        self._shapes: Any = None
        self._passed_by: Any = None
        self._always_dynamic = self.dynamic_shape
        self._counter: TokenCounter | None = None
        if token_weighted:
            count = token_weighted if callable(token_weighted) else None
            self._counter = TokenCounter(self._head, count)

    @property
    def _head(self) -> LossHead:
        head: LossHead = self.module.loss_fn
        return head

    def train_batch(self, data_iter: Any = None) -> Tensor:
        """Train on the next ``gradient_accumulation_steps()`` micro-batches.

        Args:
            data_iter: Iterator over micro-batches; read on the first and the last
                stage. None: the one before.

        Returns:
            The loss, the mean over micro-batches and replicas, on every rank.

        Raises:
            StopIteration: The data have ended; on all ranks.
            PartitionerError: A batch was refused on some rank; on all ranks.
        """
        if data_iter is not None:
            self.set_dataiterator(data_iter)
            self._passed_by = data_iter
        self._load(self.micro_batches)
        loss: Tensor = super().train_batch()
        return loss

    def _load(self, count: int) -> None:
        """Load a batch of ``count`` micro-batches, and agree with all ranks on it."""
        self._loaded.clear()
        self._head.weights.clear()
        self._head.labels.clear(keeps_all=self.is_last_stage())
        failure: Exception | None = None
        counts: list[int] = []
        try:
            counts = self._take(count)
        except Exception as error:
            failure = error
        mine = _FAILED if failure else len(self._loaded) if self._reads else count
        fewest, shapes = self._agree(mine, self._compared())
        if fewest < count:
            self._shapes = None  # nobody has been told of them
            self._give_up(fewest, count, failure)
        self._follow(shapes)
        if self._counter is not None and self.is_last_stage():
            self._weigh(counts)
        inputs, labels = self.is_first_stage(), self.is_last_stage()
        self._ahead.load(self._loaded, inputs=inputs, labels=labels)
        self._loaded.clear()

    @staticmethod
    def _give_up(fewest: int, count: int, failure: Exception | None) -> NoReturn:
        """Raise on all ranks what keeps a batch from being run."""
        with raise_on_all_ranks("loading a batch"):
            if failure is not None:
                raise failure
        if fewest == 0:
            raise StopIteration
        raise RuntimeGuardError(
            f"the data ended within a batch: {fewest} of {count} micro-batches",
            hint="give a multiple of the micro-batches, or repeat the data",
        )

    @property
    def _reads(self) -> bool:
        """Whether this rank reads data."""
        return bool(self.is_first_stage() or self.is_last_stage())

    def _take(self, count: int) -> list[int]:
        """Load what there is, up to ``count``; return its numbers of tokens."""
        counts: list[int] = []
        if not self._reads:
            if isinstance(self._passed_by, Batches):  # it counts on every stage
                deque(islice(self._passed_by, count), maxlen=0)
            return counts
        if self.data_iterator is None:
            raise OptionError(
                "there are no data",
                hint="give train_batch an iterator of micro-batches",
            )
        for raw in islice(self.data_iterator, count):
            batch = self.batch_fn(raw) if self.batch_fn else raw
            self._loaded.append(batch)
            if self._counter is not None and self.is_last_stage():
                counts.append(self._counter(raw, batch[1]))
        return counts

    def _compared(self) -> int:
        """Say how the shapes of the loaded inputs compare, on the first stage."""
        if not self.is_first_stage() or not self._loaded:
            return _SAME
        found = [_shapes(batch[0]) for batch in self._loaded]
        before, self._shapes = self._shapes, found[0]
        if any(shapes != found[0] for shapes in found):
            self._shapes = None
            return _MIXED
        return _SAME if found[0] == before else _NEW

    def _agree(self, taken: int, shapes: int) -> tuple[int, int]:
        """Return the fewest micro-batches and the greatest change of all ranks."""
        fewest, change = self.hosts.least([taken, -shapes])
        return fewest, -change

    def _follow(self, shapes: int) -> None:
        """Be ready for the shapes of this batch."""
        if shapes == _MIXED and not self.MIXED_SHAPES:
            self._shapes = None
            raise RuntimeGuardError(
                "the micro-batches of a batch differ in shape, which this schedule's "
                "engine cannot send",
                hint='pad them to one length, or use schedule="1f1b"',
            )
        if shapes != _SAME:
            self.reset_activation_shape()
        self.dynamic_shape = self._always_dynamic or shapes == _MIXED
        self.module.dynamic_shape = self.dynamic_shape
        self.module.expect_headers(repeat=not self.dynamic_shape, new=shapes != _SAME)

    def _weigh(self, counts: list[int]) -> None:
        """Set the weights of this batch's micro-batches by their tokens."""
        total = sum(counts)
        if self.is_data_parallel:
            everyone = torch.tensor(total, device=self.device)
            comm.all_reduce(everyone, group=self.grid.get_data_parallel_group())
            total = int(everyone)
        self._head.weights.extend(weights(counts, total, self.grid.data_parallel_size))

    def _take_model_step(self, lr_kwargs: Any) -> None:
        self.module.check_headers()
        super()._take_model_step(lr_kwargs)

    def _next_batch(self) -> Any:
        return self._ahead.next()


def _shapes(inputs: Any) -> Any:
    """Return the shapes of all tensors, and how they lie in memory."""
    leaves = pytree.tree_leaves(inputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return [(tensor.shape, memory_order(tensor)) for tensor in tensors]
