"""DeepSpeed's pipeline engine, with what a plan knows about its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deepspeed
from deepspeed.runtime.pipe.dualpipev import DualPipeVEngine

from partitioner.errors import OptionError, RuntimeGuardError
from partitioner.runtime.agreement import gather
from partitioner.runtime.checkpoint import CheckpointingEngine
from partitioner.runtime.cuda_graphs import CudaGraphs
from partitioner.runtime.data import PipelineLoader, Place
from partitioner.runtime.eager import Eager
from partitioner.runtime.evaluation import Evaluating
from partitioner.runtime.finite import watch
from partitioner.runtime.gradients import AnyGradients
from partitioner.runtime.loss_scaling import LossScaling
from partitioner.runtime.lost_peers import lost_peers
from partitioner.runtime.monitoring import Monitoring
from partitioner.runtime.reports import Reporting
from partitioner.runtime.zero_bubble import ZeroBubble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from partitioner.runtime.pipeline_module import PartitionedPipelineModule

__all__ = ["DualPipeVPlanEngine", "PlanEngine", "PlanEngineMixin", "initialize"]


def initialize(
    module: PartitionedPipelineModule,
    *,
    config: Mapping[str, Any],
    batch_fn: Callable[[Any], Any],
    token_weighted: bool | Callable[[Any], Any] = False,
    check_finite: bool = False,
    zero_bubble: bool = False,
    cuda_graphs: bool = False,
    **deepspeed_kwargs: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return what ``deepspeed.initialize`` returns, with a :class:`PlanEngine`.

    Args:
        module: This rank's stage.
        config: The whole DeepSpeed configuration.
        batch_fn: Turns a batch of the user's into what both ends of the pipeline take.
        token_weighted: Average the loss over the tokens of the whole batch.
        check_finite: Stop at the first number that is not finite.
        zero_bubble: Put weight gradients off to where a stage would wait.
        cuda_graphs: Record the launches of the stages once, and replay them.
        **deepspeed_kwargs: For ``deepspeed.initialize``.

    Raises:
        RuntimeGuardError: Under ZeRO the ranks have different numbers of groups.
        OptionError: Weight gradients cannot be put off, or launches not be replayed.
    """
    if cuda_graphs and (zero_bubble or check_finite):
        raise OptionError(
            "cuda_graphs=True with zero_bubble or check_finite: a replay makes all "
            "gradients at once, and shows no module's numbers",
            hint="leave one of them out",
        )
    if module.runs_ahead and zero_bubble:
        raise OptionError(
            "zero_bubble=True with eager-1f1b: each fills the bubble its own way",
            hint='plan with schedule="1f1b", or leave zero_bubble out',
        )
    engine, *others = deepspeed.initialize(
        model=module, config=dict(config), **deepspeed_kwargs
    )
    _check_groups(engine)
    # DeepSpeed chooses the class by the module's and offers no way to name another.
    dual = isinstance(engine, DualPipeVEngine)
    engine.__class__ = DualPipeVPlanEngine if dual else PlanEngine
    engine.adopt(batch_fn, token_weighted=token_weighted)
    engine.start_zero_bubble(wanted=zero_bubble)
    engine.start_eager(wanted=module.runs_ahead)
    if cuda_graphs:
        engine.start_cuda_graphs(engine.sums)
    if check_finite:
        watch(module, module.loss_fn, engine.stage_id)
    return (engine, *others)


def _check_groups(engine: Any) -> None:
    """Refuse groups that ZeRO would wait for: it sums their norms one by one.

    Raises:
        RuntimeGuardError: Ranks have different numbers of them; on all ranks.
    """
    groups = getattr(engine.optimizer, "param_groups", ())
    counts = gather(len(groups))
    if engine.zero_optimization() and len(set(counts)) > 1:
        raise RuntimeGuardError(
            f"the optimizer has {', '.join(map(str, counts))} parameter groups on the "
            "ranks: DeepSpeed drops a group that is empty on a stage, and ZeRO would "
            "wait for it there",
            hint="give the groups as plan.initialize(groups=…)",
        )


class PlanEngineMixin(
    CheckpointingEngine, AnyGradients, Evaluating, Reporting, LossScaling, Monitoring
):
    """What a plan adds to any of DeepSpeed's pipeline engines."""

    def adopt(
        self,
        batch_fn: Callable[[Any], Any],
        *,
        token_weighted: bool | Callable[[Any], Any],
    ) -> None:
        """Make an engine that DeepSpeed has built one of a plan.

        Args:
            batch_fn: As for :func:`initialize`.
            token_weighted: As for :func:`initialize`.
        """
        self.set_batch_fn(batch_fn)
        self.look_ahead(token_weighted)
        self.start_reports()
        self.start_loss_scaling()

    def train_batch(self, data_iter: Any = None) -> Tensor:
        """Train on one batch, see :meth:`LookAhead.train_batch`.

        Raises:
            StageError: The model or the loss raised, here or on another rank.
            RuntimeGuardError: Another rank cannot be reached any more.
        """
        watched = lost_peers(self.stage_id, self.global_steps, self.module)
        with watched, self.step_monitored():
            loss: Tensor = super().train_batch(data_iter)
        return loss

    def destroy(self) -> None:
        """Let go of everything, as DeepSpeed does, and of the last batch's values.

        Their hooks refer to the engine through autograd, where Python's collector does
        not see it: parameters and optimizer states would stay until the process ends.
        (With an optimizer on the host they do: DeepSpeed's own hooks keep it.)
        """
        try:
            super().destroy()
        finally:
            self.loss = None
            self.pipe_buffers: dict[str, list[Any]] = {}

    def eval_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch, see :meth:`Evaluating.eval_batch`.

        Raises:
            StageError: The model or the loss raised, here or on another rank.
            RuntimeGuardError: Another rank cannot be reached any more.
        """
        with lost_peers(self.stage_id, self.global_steps, self.module):
            return super().eval_batch(*args, **kwargs)

    def dataloader(
        self, dataset: Any, *, micro_batches: int | None = None, **loader_kwargs: Any
    ) -> PipelineLoader:
        """Return a loader that gives both ends of the pipeline the same micro-batches.

        Args:
            dataset: Has ``__len__`` and ``__getitem__``.
            micro_batches: How many are taken at a time; None as many as in training.
            **loader_kwargs: For :class:`~partitioner.runtime.data.PipelineLoader`:
                ``seed``, ``shuffle``, ``collate_fn``, ``drop_last``, ``num_workers``, …

        Raises:
            OptionError: The dataset is too short or has no length, or an argument is
                the loader's own.
        """
        place = Place(
            replica=self.grid.get_data_parallel_id(),
            replicas=self.grid.data_parallel_size,
            reads=self.is_first_stage() or self.is_last_stage(),
        )
        loader_kwargs.setdefault("batch_size", self.micro_batch_size)
        step = self.micro_batches if micro_batches is None else micro_batches
        return PipelineLoader(dataset, place=place, step=step, **loader_kwargs)


class PlanEngine(PlanEngineMixin, CudaGraphs, ZeroBubble, Eager):
    """The engine of a plan; made by :func:`initialize`, never by itself."""

    def reset_activation_shape(self) -> None:
        """Let the next batch have another shape; every rank must call it."""
        super().reset_activation_shape()
        self.module.reset_shapes()


class DualPipeVPlanEngine(PlanEngine, DualPipeVEngine):
    """The engine of a plan for ``schedule="dualpipev"``."""

    MIXED_SHAPES = False

    def start_zero_bubble(self, *, wanted: bool) -> None:
        """Refuse to put weight gradients off.

        Raises:
            OptionError: It was wanted.
        """
        super().start_zero_bubble(wanted=False)
        if wanted:
            raise OptionError(
                "zero_bubble=True with dualpipev, which fills the bubble its own way",
                hint='plan with schedule="1f1b"',
            )

    def _load(self, count: int) -> None:
        """Load a batch, if the schedule can run so few micro-batches.

        Raises:
            OptionError: It cannot.
        """
        fewest = 2 * self.num_stages
        if count < fewest:
            raise OptionError(
                f"{count} micro-batches; DualPipeV on {self.num_stages} ranks needs "
                f"{fewest}",
                hint=f"give num_micro_batches={fewest} or more",
            )
        super()._load(count)
