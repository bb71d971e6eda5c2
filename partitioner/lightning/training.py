"""The training step of a ``LightningModule`` as a plan and its engine."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from partitioner.errors import OptionError
from partitioner.lightning.batches import BatchLayout
from partitioner.lightning.optimizers import StageOptimizer
from partitioner.lightning.step import RecordedStep
from partitioner.lightning.weights import follow_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from partitioner.lightning.batches import MicroBatch
    from partitioner.lightning.library import Library
    from partitioner.lightning.planning import Planner

__all__ = ["TrainingStep", "evaluation_engine"]

_QUIET = {"steps_per_print": 10**9, "zero_allow_untested_optimizer": True}


class TrainingStep:
    """One step of the optimizer for each batch.

    Args:
        trainer: Whose options hold.
        library: The Trainer's.
        batch: The first batch.
        planner: Plans the step.
        tokens: Counts what a loss is a mean over; None: samples.
        config: Entries of DeepSpeed's configuration.
        initialize: Further arguments of :meth:`Plan.initialize`.
    """

    def __init__(
        self,
        trainer: Any,
        library: Library,
        batch: Any,
        *,
        planner: Planner,
        tokens: Callable[[Any], Any] | None,
        config: Mapping[str, Any],
        initialize: Mapping[str, Any],
    ) -> None:
        module = trainer.lightning_module
        configure = library.part("core.optimizer._init_optimizers_and_lr_schedulers")
        (made, *_), self.schedules = configure(module)
        self.optimizer = StageOptimizer(made, module)
        self.layout = BatchLayout(batch)
        takes = library.part("utilities.signature_utils.is_param_in_hook_signature")
        numbered = takes(module.training_step, "batch_idx", min_args=2)
        arguments = (0,) if numbered else ()
        self.step = RecordedStep(module, "training_step", self.layout, arguments)
        self._tokens = tokens
        self._parts = planner.micro_batches
        self._example_inputs = module.example_input_array
        clipping = {"gradient_clipping": trainer.gradient_clip_val or 0.0}
        settings = {**_QUIET, **clipping, **config}
        with ExitStack() as undo:
            undo.callback(self.release)
            self._prepare()
            self.engine = self._build(planner, batch, settings, initialize)
            undo.pop_all()

    def _prepare(self) -> None:
        """Let the module be what the pipeline trains, until :meth:`release`."""
        for parameter in self.optimizer.left_out:
            parameter.requires_grad = False
        # Summaries would run the whole module in one process, and half of it is away.
        self.step.module.example_input_array = None

    def release(self) -> None:
        """Let the module be as the user had it."""
        for parameter in self.optimizer.left_out:
            parameter.requires_grad = True
        self.step.module.example_input_array = self._example_inputs

    def _build(
        self,
        planner: Planner,
        batch: Any,
        config: Mapping[str, Any],
        initialize: Mapping[str, Any],
    ) -> Any:
        """Record, plan, and return the engine."""
        example = self.layout.split(batch, self._parts)[0]
        with self.step.recording():
            plan = planner(self.step, example, optimizer=self.optimizer.priced_as)
            engine, *_ = plan.initialize(
                self.step.loss,
                config=config,
                groups=self.optimizer.rules(),
                optimizer=self.optimizer.adopt,
                token_weighted=self._count,
                **initialize,
            )
        follow_buffers(engine.module, self.step.module)
        return engine

    def run(self, batch: Any) -> dict[str, Any]:
        """Train on one batch, and log what the step logs.

        Returns:
            The loss, and what else the step returned, the same on every rank.
        """
        parts = self.layout.split(batch, self._parts)
        loss = self.engine.train_batch(iter(parts))
        logged, returned = self.step.reported(self.engine.get_additional_losses())
        self.step.replay(logged, sum(part.samples for part in parts))
        return {"loss": loss, **returned}

    def check_takes_files(self) -> None:
        """Refuse a file of Lightning's where the optimizer keeps copies of weights.

        Raises:
            OptionError: It does.
        """
        if self.engine.optimizer is not self.optimizer.optimizer:
            raise OptionError(
                "a checkpoint that Lightning saved in one process is taken over in "
                "float32 without ZeRO alone: the optimizer keeps copies of the weights "
                "here",
                hint="load its weights into the module before fit()",
            )

    def _count(self, batch: MicroBatch) -> int:
        return self.layout.weight(batch, self._tokens)


def evaluation_engine(  # noqa: PLR0917 - what a step is made of
    module: Any,
    name: str,
    batch: Any,
    arguments: tuple[Any, ...],
    planner: Planner,
    config: Mapping[str, Any],
) -> Any:
    """Return an engine that only evaluates.

    Args:
        module: The ``LightningModule``.
        name: Of the step.
        batch: Its first batch.
        arguments: What the step takes after the batch.
        planner: Plans the step.
        config: Entries of DeepSpeed's configuration.
    """
    layout = BatchLayout(batch)
    step = RecordedStep(module, name, layout, arguments)
    example = layout.split(batch, planner.micro_batches)[0]
    with step.recording():
        plan = planner(step, example, optimizer="sgd")
        engine, *_ = plan.initialize(
            config={**_QUIET, **config},
            optimizer=lambda groups: torch.optim.SGD(groups, lr=0.0),
        )
    follow_buffers(engine.module, module)
    return engine
