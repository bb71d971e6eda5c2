"""Evaluate with a pipeline: losses, or the model's own outputs, of any batch size."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm
from torch import Tensor

from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.runtime.lookahead import LookAhead
from partitioner.runtime.loss import Evaluation

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Evaluating"]


class Evaluating(LookAhead):
    """An engine that evaluates batches of any size, between training steps too."""

    module: Any
    batch_fn: Any
    training_dataloader: Any
    data_iterator: Any

    def eval_batch(  # noqa: PLR0917 - DeepSpeed's own signature
        self,
        data_iter: Any,
        return_logits: bool = False,  # noqa: FBT001, FBT002
        compute_loss: bool = True,  # noqa: FBT001, FBT002
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,  # noqa: FBT001, FBT002
        num_micro_batches: int | None = None,
    ) -> Any:
        """Run the model in eval mode, without gradients.

        Args:
            data_iter: Iterator over micro-batches; read on the first and last stage.
            return_logits: Return the model's outputs as well.
            compute_loss: Return the loss; else the outputs stand in its place.
            reduce_output: "avg" means over micro-batches and replicas; None returns a
                list with one entry for each micro-batch of this replica.
            bcast_loss: Give the loss to every rank; else the last stage alone has it.
            num_micro_batches: How many to read; None as many as in training.

        Returns:
            The loss, or the pair of it and the outputs if ``return_logits``. Outputs
            are the model's own, on the last stage (None elsewhere); a list of them if
            there are several micro-batches.

        Raises:
            OptionError: An argument is out of range.
            StopIteration: The data have ended; on all ranks.
            PartitionerError: A batch was refused on some rank; on all ranks.
        """
        count = self.micro_batches if num_micro_batches is None else num_micro_batches
        _check(count, reduce_output)
        evaluation = Evaluation(
            keeps_outputs=return_logits or not compute_loss, computes_loss=compute_loss
        )
        with self._evaluating(evaluation, data_iter), torch.no_grad():
            self._load(count)
            self._exec_schedule(self._inference_schedule(count))
            self.module.check_headers()
            if compute_loss:
                result = self._evaluated(reduce_output, count, everywhere=bcast_loss)
            else:
                result = self._outputs(evaluation.outputs, reduce_output)
        self._log_evaluated(result if compute_loss and reduce_output else None)
        if not return_logits:
            return result
        outputs = self._outputs(evaluation.outputs, None)
        return result, outputs[0] if outputs and count == 1 else outputs

    @contextmanager
    def evaluating_with(self, module: Any, batch_fn: Any) -> Iterator[None]:
        """Let :meth:`eval_batch` run another plan's stages inside.

        Args:
            module: The other plan's pipeline module, of as many stages; its stages may
                hold the same parameters as this engine's. Every rank must enter.
            batch_fn: The other plan's.
        """
        mine = self.module, self.batch_fn, self._counter
        # Tokens are counted as this engine's own loss does.
        self.module, self.batch_fn, self._counter = module, batch_fn, None
        self._shapes = None  # the stages have not been told of these
        try:
            yield
        finally:
            self.module, self.batch_fn, self._counter = mine
            self._shapes = None

    @contextmanager
    def _evaluating(self, evaluation: Evaluation, data_iter: Any) -> Iterator[None]:
        training = self.training_dataloader, self.data_iterator, self._passed_by
        self.module.eval()
        self.set_dataiterator(data_iter)
        self._passed_by = data_iter
        self._compute_loss = True
        self._head.evaluation = evaluation
        try:
            yield
        finally:
            self._head.evaluation = None
            self.training_dataloader, self.data_iterator, self._passed_by = training

    def _evaluated(self, reduce: str | None, count: int, *, everywhere: bool) -> Any:
        """Return the losses of the micro-batches, or their mean."""
        losses = torch.zeros(count, device=self.device)
        if self.is_last_stage():
            losses = torch.stack(self.fwd_outputs).float()
            if reduce is not None:
                losses = self._mean_of_replicas(losses.mean(0, keepdim=True))
        elif reduce is not None:
            losses = losses[:1]
        if everywhere and self.is_pipe_parallel:
            source, group = (
                self._loss_stage_global_rank(),
                self.grid.get_pipe_parallel_group(),
            )
            comm.broadcast(losses, src=source, group=group)
        elif not everywhere and not self.is_last_stage():
            return None
        return losses[0] if reduce is not None else list(losses)

    def _outputs(self, outputs: list[tuple[Any, ...]], reduce: str | None) -> Any:
        """Return the outputs, or the one that has the mean of each tensor."""
        if not self.is_last_stage():
            return None
        if reduce is None:
            return [self._head.rebuild(leaves) for leaves in outputs]
        columns = zip(*outputs, strict=True)
        return self._head.rebuild([self._mean(column) for column in columns])

    def _mean(self, values: tuple[Any, ...]) -> Any:
        if not isinstance(values[0], Tensor):
            return values[0]
        if len({value.shape for value in values}) > 1:
            raise RuntimeGuardError(
                "the outputs of the micro-batches differ in shape: "
                f"{', '.join(str(tuple(value.shape)) for value in values)}",
                hint="pass reduce_output=None: a list of outputs instead of their mean",
            )
        return self._mean_of_replicas(torch.stack(values).float().mean(0))

    def _mean_of_replicas(self, value: Tensor) -> Tensor:
        if self.is_data_parallel:
            comm.all_reduce(value, group=self.grid.get_data_parallel_group())
            value /= self.grid.data_parallel_size
        return value

    def _log_evaluated(self, loss: Tensor | None) -> None:
        if loss is not None and self.global_rank == 0 and self.monitor.enabled:
            event = ("Train/Samples/eval_loss", loss.item(), self.global_samples)
            self.monitor.write_events([event])


def _check(count: int, reduce_output: str | None) -> None:
    if count < 1:
        raise OptionError(f"num_micro_batches is {count}; at least 1 is needed")
    if reduce_output not in {None, "avg"}:
        raise OptionError(
            f"reduce_output is {reduce_output!r}", hint='"avg" or None are possible'
        )
