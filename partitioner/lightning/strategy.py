"""``Trainer(strategy=PipelineStrategy(stages=2))``: Lightning's loop, our engine."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from partitioner.errors import OptionError
from partitioner.lightning import checks
from partitioner.lightning.checkpointing import Checkpointing
from partitioner.lightning.evaluation import EvaluationStep
from partitioner.lightning.library import imported
from partitioner.lightning.placed import Placed
from partitioner.lightning.planning import Planner
from partitioner.lightning.shared_data import (
    DataStream,
    SharedLoader,
    check_same,
    isolated,
)
from partitioner.lightning.stand_ins import metrics_of
from partitioner.lightning.training import TrainingStep, evaluation_engine
from partitioner.lightning.weights import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from partitioner.lightning.library import Library

__all__ = ["PipelineStrategy"]


class PipelineStrategy(Placed, Checkpointing):
    """Trains an ordinary ``LightningModule`` as a pipeline.

    ``training_step`` is recorded on the first micro-batch of the first batch, and cut
    into stages; ``configure_optimizers`` gives the optimizer and its schedules. One
    batch of the loader is one step of the optimizer, run as micro-batches.

    Args:
        stages: Number of pipeline stages. As many processes as a multiple of them make
            as many replicas.
        micro_batches: Into how many parts a batch is cut; None: four times the stages.
        example_batch: A batch as the training loader gives it, to record with; None:
            the first one of the loader, which is read once more for it.
        tokens: Counts what the loss of a (micro-)batch is a mean over, given the
            (micro-)batch; None: its samples.
        config: Entries of DeepSpeed's configuration.
        initialize: Further arguments of :meth:`Plan.initialize`: ``zero_bubble``,
            ``cuda_graphs``, ``check_finite``, ``module``.
        library: ``lightning.pytorch`` or ``pytorch_lightning``, if both are imported.
        **options: Of :func:`partitioner.partition`: ``device``, ``memory_limit``,
            ``checkpointing``, ``pin``, …

    Raises:
        OptionError: An option belongs to the Trainer or the module, or it cannot be
            told which Lightning the strategy is for.
    """

    def __new__(cls, *_args: Any, library: Any = None, **_options: Any) -> Self:
        """Make a strategy of the library that is imported."""
        own = _strategy_of(imported(library)) if cls is PipelineStrategy else cls
        made: Self = super().__new__(own)
        return made

    def __init__(
        self,
        stages: int,
        *,
        micro_batches: int | None = None,
        example_batch: Any = None,
        tokens: Callable[[Any], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        initialize: Mapping[str, Any] | None = None,
        library: Any = None,  # noqa: ARG002 - read where the class is chosen
        **options: Any,
    ) -> None:
        super().__init__()
        checks.check_options(options, initialize or {})
        self.stages = stages
        self._micro_batches = micro_batches
        self._options = options
        self._example_batch = example_batch
        self._tokens = tokens
        self._config = dict(config or {})
        self._initialize = dict(initialize or {})
        self._training: TrainingStep | None = None
        self._evaluations: dict[tuple[str, Any], EvaluationStep] = {}
        self._metrics: list[Any] = []
        self._stream: DataStream | None = None
        self.engine: Any = None
        """DeepSpeed's engine of this rank's stage, while the Trainer runs."""

    # ------------------------------------------------------------------ the set-up

    def setup_environment(self) -> None:
        """Join the other processes."""
        checks.check_device(self.root_device.type, get_accelerator().device_name())
        super().setup_environment()
        self.join()
        checks.check_world(dist.get_world_size(), self.stages)

    def setup(self, trainer: Any) -> None:
        """Record, plan and build this rank's stage, if the Trainer is to fit."""
        self.accelerator.setup(trainer)
        checks.check_precision(trainer.precision)
        self.precision_plugin.convert_module(self.lightning_module)
        self._stream = self._stream or DataStream(
            self.replica, lambda: bool(trainer.sanity_checking)
        )
        if trainer.state.fn != "fit":
            return
        checks.check_fit(trainer, self.lightning_module, self.lightning)
        with isolated():
            self._training = TrainingStep(
                trainer,
                self.lightning,
                self._first_batch(trainer),
                planner=self._planner(),
                tokens=self._tokens,
                config=self._config,
                initialize=self._initialize,
            )
        self._adopt(self._training.engine)
        self.optimizers = [self._training.optimizer.optimizer]
        self.lr_scheduler_configs = self._training.schedules

    def _adopt(self, engine: Any) -> None:
        """Use an engine; metrics that hooks update count every replica once."""
        self.engine = engine
        metrics = metrics_of(self.lightning_module)
        self._metrics = [each for each in metrics if each.process_group is None]
        for metric in metrics:
            metric.to(self.root_device)
        for metric in self._metrics:
            metric.process_group = self._peers()

    def model_to_device(self) -> None:
        """Leave the module where it is: the engine moves this rank's stage."""

    def _planner(self) -> Planner:
        options = self._options
        if "cluster" not in options:
            options = {"replicas": self.replicas, **options}
        return Planner(self.stages, self._micro_batches, options)

    def _first_batch(self, trainer: Any) -> Any:
        """Return the first batch as ``training_step`` will get it."""
        batch = self._example_batch
        if batch is None:
            combined = self.lightning.part("utilities.combined_loader.CombinedLoader")
            source = trainer.fit_loop._data_source.dataloader()  # noqa: SLF001 - before the loop has asked for it
            loader = source
            if not isinstance(source, combined):
                loader = combined(source, "max_size_cycle")
            batch, _, _ = next(iter(loader))
        batch = self.precision_plugin.convert_input(batch)
        module = self.lightning_module
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)  # noqa: SLF001 - as the loop does
        return self.batch_to_device(batch)

    def process_dataloader(self, dataloader: Any) -> SharedLoader:
        """Let a loader draw what it draws on all ranks alike."""
        if self._stream is None:
            raise OptionError("a loader is processed before the strategy is set up")
        return SharedLoader(dataloader, self._stream)

    # ---------------------------------------------------------------------- steps

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Compare the first batch of an epoch among the ranks."""
        if batch_idx == 0:
            check_same(batch, self.replica)

    def training_step(self, batch: Any, *_args: Any) -> dict[str, Any]:
        """Train on one batch: forward, backward and the optimizer's step.

        Returns:
            The loss, and what else the module's step returned.
        """
        if self._training is None:
            raise OptionError("training_step is called before the Trainer fits")
        return self._training.run(batch)

    def backward(self, closure_loss: Any, *_args: Any, **_kwargs: Any) -> Any:
        """Return the loss: the engine has run backward."""
        return closure_loss

    def optimizer_step(
        self,
        optimizer: Any,  # noqa: ARG002 - the engine steps it
        closure: Callable[[], Any],
        model: Any = None,  # noqa: ARG002
        **_kwargs: Any,
    ) -> Any:
        """Run the batch; the engine steps the optimizer."""
        return closure()

    def validation_step(self, batch: Any, *args: Any) -> Any:
        """Evaluate one batch."""
        return self._evaluate("validation_step", batch, args)

    def test_step(self, batch: Any, *args: Any) -> Any:
        """Evaluate one batch."""
        return self._evaluate("test_step", batch, args)

    def predict_step(self, *_args: Any) -> Any:
        """Refuse to predict.

        Raises:
            OptionError: Always.
        """
        raise OptionError(
            "Trainer.predict does not run in a pipeline",
            hint="return the predictions from test_step: on_test_batch_end gets them",
        )

    def _evaluate(self, name: str, batch: Any, args: tuple[Any, ...]) -> Any:
        key = (name, args[1:])
        # What inference mode makes could not be used in training any more.
        with torch.inference_mode(mode=False), torch.no_grad():
            if key not in self._evaluations:
                with isolated():
                    self._evaluations[key] = self._evaluation(name, batch, args)
            evaluation = self._evaluations[key]
            logged, result, samples = evaluation.run(batch)
        evaluation.step.replay(logged, samples)
        return result

    def _evaluation(
        self, name: str, batch: Any, args: tuple[Any, ...]
    ) -> EvaluationStep:
        module, planner = self.lightning_module, self._planner()
        if self.engine is None:
            self._adopt(
                evaluation_engine(module, name, batch, args, planner, self._config)
            )
        return EvaluationStep(
            self.engine, module, name, batch, args, planner, self._tokens
        )

    # ------------------------------------------------------------------- the end

    def on_train_end(self) -> None:
        """Give every rank's module the trained weights."""
        spread(self.engine, self.lightning_module)

    def teardown(self) -> None:
        """Let go of the engine; the module is an ordinary one again."""
        if self._training is not None:
            self._training.release()
        if self.engine is not None:
            for metric in self._metrics:
                metric.process_group = None
            self.engine.destroy()
        self.engine = self._training = self._stream = None
        self._evaluations.clear()
        super().teardown()


@cache
def _strategy_of(library: Library) -> type[PipelineStrategy]:
    """Return the strategy that is one of this library's own."""
    base = library.part("strategies.ParallelStrategy")
    attributes = {"lightning": library, "__doc__": PipelineStrategy.__doc__}
    return type("PipelineStrategy", (PipelineStrategy, base), attributes)
