"""What a plan does inside a training process: stages, an engine, its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from partitioner.emit import Layers, Placement, emit
from partitioner.emit.build import batch_adapter, build_pipeline, layer_specs
from partitioner.emit.ds_config import ds_config
from partitioner.emit.weights import weighted
from partitioner.plan.costs import note_prices
from partitioner.plan.file import payload
from partitioner.plan.stages import StagePlan, check_put_off
from partitioner.runtime.compile_options import compile_options
from partitioner.runtime.engine import initialize
from partitioner.runtime.parameter_groups import parameter_groups
from partitioner.solve import Assignment, Problem, check_room, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deepspeed.pipe import LayerSpec
    from typing_extensions import Self

    from partitioner.costed import CostedGraph
    from partitioner.graph import ModelGraph
    from partitioner.options import Options
    from partitioner.runtime.batch import BatchAdapter
    from partitioner.runtime.pipeline_module import PartitionedPipelineModule
    from partitioner.runtime.weights import GivenWeights
    from partitioner.solve.problem import Schedule

__all__ = ["TrainablePlan"]


class TrainablePlan(ABC):
    """The training half of :class:`~partitioner.plan.plan.Plan`."""

    costed: CostedGraph
    problem: Problem
    assignment: Assignment
    options: Options

    @property
    @abstractmethod
    def graph(self) -> ModelGraph:
        """The recorded model."""

    @property
    @abstractmethod
    def stages(self) -> tuple[StagePlan, ...]:
        """What every stage runs and costs."""

    @property
    @abstractmethod
    def placement(self) -> Placement:
        """Stage and activation checkpoint of every node."""

    @cached_property
    def layers(self) -> Layers:
        """The segments of the pipeline, before DeepSpeed builds them."""
        return emit(self.graph, self.placement)

    @cached_property
    def compiled_layers(self) -> Layers:
        """The segments as :meth:`pipeline_module` takes them to compile them."""
        found = emit(self.graph, self.placement, compiled=True)
        # An opened module may read the size of an input that no segment is given.
        same = (found.first, found.late) == (self.layers.first, self.layers.late)
        return found if same else self.layers

    def layer_specs(self, *, weights: GivenWeights | None = None) -> list[LayerSpec]:
        """Return one ``LayerSpec`` for each segment; each holds the user's modules.

        Args:
            weights: As for :meth:`pipeline_module`: a stage's values are read or made
                when the first of its segments is built, in copies of the modules.

        Raises:
            EmitError: The plan cannot be turned into segments.
            OptionError: ``weights`` is no source of values.
            WeightsError: ``weights`` does not give all that a stage needs.
        """
        if weights is None:
            return layer_specs(self.layers)
        twins = self.options.schedule == "dualpipev"
        return weighted(self.graph, self.layers, weights, twins=twins).specs

    def initialize(
        self,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        *,
        weights: GivenWeights | None = None,
        config: Mapping[str, Any] | None = None,
        module: Mapping[str, Any] | None = None,
        groups: Sequence[Mapping[str, Any]] = (),
        token_weighted: bool | Callable[[Any], Any] = False,
        check_finite: bool = False,
        zero_bubble: bool = False,
        cuda_graphs: bool | None = None,
        **deepspeed_kwargs: Any,
    ) -> tuple[Any, Any, Any, Any]:
        """Build this rank's stage and the engine that trains it.

        ``deepspeed.initialize`` with the plan's pipeline module and configuration,
        and an engine that has the plan's batch function and does right what
        DeepSpeed's own does not (see :class:`~partitioner.runtime.engine.PlanEngine`).

        Args:
            loss_fn: As for :meth:`pipeline_module`.
            weights: As for :meth:`pipeline_module`.
            config: Entries of DeepSpeed's configuration, to add to :meth:`ds_config`'s
                or to replace them.
            module: Keyword arguments for :meth:`pipeline_module`.
            groups: The optimizer's groups, as for :meth:`parameter_groups`; without
                any it gets all trainable parameters alike.
            token_weighted: Average the loss over all tokens of a batch, not over the
                means of its micro-batches and replicas; a function of a micro-batch
                counts its tokens where the loss does not show them.
            check_finite: Stop at the first module that returns an infinite or
                undefined number in training, and name it and its stage. Slow: for
                finding out, not for every run.
            zero_bubble: Run 1F1B with the gradients of weights put off to where a stage
                would wait: a step is shorter, and the later stages hold the inputs of
                their linear layers and convolutions for as many micro-batches more as
                there are stages before. Not with ZeRO, nor with compiled stages.
            cuda_graphs: Record the launches of each stage once and replay them, so that
                the host cannot be too slow; None: as :func:`partition` was told. Not
                with ZeRO, nor with ``zero_bubble`` or ``check_finite``.
            **deepspeed_kwargs: For ``deepspeed.initialize``: ``optimizer``,
                ``model_parameters``, ``lr_scheduler``, ``training_data``, …

        Returns:
            ``(engine, optimizer, training_dataloader, lr_scheduler)``.

        Raises:
            OptionError: An entry of the configuration contradicts the plan.
            MemoryLimitError: ``zero_bubble`` or ``cuda_graphs`` needs more than a
                stage has.
            PartitionerError: As :meth:`pipeline_module`.
        """
        if zero_bubble:
            check_put_off(self)
        if cuda_graphs is None:
            cuda_graphs = self.options.cuda_graphs
        if cuda_graphs:
            check_room(self.problem, self.assignment)
        settings = self.ds_config(**(config or {}))
        if deepspeed_kwargs.get("optimizer") is not None:
            del settings["optimizer"]
        stages = self.pipeline_module(loss_fn, weights=weights, **(module or {}))
        if groups:
            deepspeed_kwargs["model_parameters"] = self.parameter_groups(stages, groups)
        return initialize(
            stages,
            config=settings,
            batch_fn=self.batch_fn,
            token_weighted=token_weighted,
            check_finite=check_finite,
            zero_bubble=zero_bubble,
            cuda_graphs=cuda_graphs,
            **deepspeed_kwargs,
        )

    def pipeline_module(
        self,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        *,
        weights: GivenWeights | None = None,
        compile: bool | Mapping[str, Any] = False,  # noqa: A002 - the word that users know
        **pipeline_module_kwargs: Any,
    ) -> PartitionedPipelineModule:
        """Build this rank's stage; joins the launcher's process group if needed.

        All ranks use rank 0's plan, after comparing what it was made of.

        Args:
            loss_fn: ``loss_fn(output, labels)`` on the model's own output structure:
                a function or a module that returns a scalar, or
                ``(scalar, {name: scalar})`` to report further losses. None: the loss
                the model itself returns.
            weights: Where the stage's parameters and buffers get their values, above
                all for a model on ``meta``: a folder or file that holds them, the id
                of a model in the local hub cache, or
                :class:`~partitioner.InitialWeights`. Each rank reads or makes its own
                stage's alone, and the model stays as it is. None: the model's own.
            compile: Whether the stages run under ``torch.compile``, or its keyword
                arguments.
            **pipeline_module_kwargs: For DeepSpeed's ``PipelineModule``.

        Raises:
            OptionError: An option contradicts the plan.
            EmitError: The model has no weights, or the loss has the model's parameters.
            PlanMismatchError: Ranks recorded different models.
            RuntimeGuardError: No launcher, a wrong world size, other versions.
            WeightsError: ``weights`` does not give all that a stage needs.
        """
        compiled = compile_options(compile)
        note_prices(self.costed, compiled=compiled is not None)
        return build_pipeline(
            self.agreed_by,
            self.batch_fn,
            loss_fn,
            pipeline_module_kwargs,
            weights=weights,
            compiled=compiled,
        )

    def monitor(self, engine: Any, *, every: int = 10) -> None:
        """Write bubble, stage times and memory to DeepSpeed's monitor while training.

        To TensorBoard, CSV files or Weights & Biases: whatever the configuration
        switches on (``config={"tensorboard": {"enabled": True, …}}``).

        Args:
            engine: From :meth:`initialize`; every rank must call.
            every: Steps between two that are recorded and written.

        Raises:
            OptionError: ``every`` is no number of steps, or no monitor is switched on.
        """
        engine.start_monitoring(every=every)

    def parameter_groups(
        self,
        module: PartitionedPipelineModule,
        rules: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return this rank's part of an optimizer's groups, by original names.

        All ranks get equally many groups in the same order: one for each rule, and
        one for the trainable parameters that no rule means, if there are any. Where a
        group has nothing on this stage it holds a placeholder.

        Args:
            module: What :meth:`pipeline_module` returned, before an engine has it.
            rules: Groups as torch's optimizers take them, whose ``params`` are names,
                globs (``"*.bias"``), classes of modules, or functions of (name,
                parameter): ``{"params": ["*.bias", nn.LayerNorm], "weight_decay": 0}``.

        Raises:
            OptionError: A pattern matches nothing in the whole model or only frozen
                parameters, or a parameter is in two groups.
        """
        return parameter_groups(module, self.graph.model, rules)

    def agreed_by(self, agree: Callable[[dict[str, Any]], dict[str, Any]]) -> Self:
        """Return the plan that all ranks agreed on.

        Args:
            agree: Takes this rank's decisions, returns rank 0's.
        """
        told = agree(payload(self))
        if told["schedule"] != self.options.schedule:
            return self._scheduled(told["schedule"]).agreed_by(lambda _: told)
        stage_of = tuple(told["stage_of"])
        recomputed = tuple(told["recomputed"])
        mine = self.assignment
        if (stage_of, recomputed) == (mine.stage_of, mine.recomputed):
            return self
        # Rank 0's answer at this rank's prices: the bound is the problem's, not its.
        found = score(self.problem, stage_of, recomputed)
        assignment = replace(
            mine,
            stage_of=stage_of,
            recomputed=recomputed,
            objective_s=found.objective_s,
        )
        return self._assigned(assignment)

    @abstractmethod
    def _scheduled(self, schedule: Schedule) -> Self:
        """Return this plan under another schedule."""

    @abstractmethod
    def _assigned(self, assignment: Assignment) -> Self:
        """Return this plan with another assignment."""

    def ds_config(self, **overrides: Any) -> dict[str, Any]:
        """Return a DeepSpeed configuration for this plan.

        Args:
            **overrides: Entries to add or replace; dicts are merged.

        Raises:
            OptionError: An entry contradicts the plan.
        """
        return ds_config(self.graph, self.options, overrides)

    @cached_property
    def batch_fn(self) -> BatchAdapter:
        """For ``engine.set_batch_fn``: dict, tuple or tensor → what each end needs."""
        return batch_adapter(self.graph, self.layers)
