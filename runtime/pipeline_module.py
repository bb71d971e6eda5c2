"""DeepSpeed's PipelineModule with the plan's bounds, ties per parameter and marks."""

from __future__ import annotations

import io
import logging
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from partitioner.runtime.agreement import ensure_process_group, raise_on_all_ranks
from partitioner.runtime.fixed_shapes import FixedShapes
from partitioner.runtime.idle_stage import reach
from partitioner.runtime.loss_stage import LossStage
from partitioner.runtime.parameter_order import aligned
from partitioner.runtime.pipeline_options import (
    check_options,
    check_parts,
    check_version,
    check_world,
)
from partitioner.runtime.replicas import replicate, share_buffers
from partitioner.runtime.segment import Segment
from partitioner.runtime.tied_stages import TiedStages
from partitioner.runtime.ties import (
    ParameterTie,
    check_ties,
    forget_gradients,
    is_counted,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deepspeed.pipe import LayerSpec

    from partitioner.runtime.guards import WeightGuards
    from partitioner.runtime.header import Header
    from partitioner.runtime.loss import LossHead

__all__ = ["ParameterTie", "PartitionedPipelineModule"]

_log = logging.getLogger(__name__)


class PartitionedPipelineModule(TiedStages, LossStage):
    """A pipeline whose stages, ties and checkpoints are those of a plan.

    Args:
        layers: One spec for each segment.
        parts: First segment of each stage, and the number of segments: stage s
            runs segments ``parts[s]`` to ``parts[s + 1] - 1``.
        ties: Parameters that live on several stages.
        loss_head: The loss on the last stage.
        guards: What must hold of the parameters when the first batch runs, after
            DeepSpeed has cast and moved them.
        aliases: Every original name of a parameter → its first one; a name that is
            not there is its own first.
        input_names: What the first stage's inputs are called, for messages.
        **pipeline_module_kwargs: Further options of PipelineModule.

    Raises:
        OptionError: An option contradicts the plan.
        EmitError: ``parts`` or a tie does not fit the layers.
        RuntimeGuardError: The DeepSpeed version, or the number of processes.
    """

    stages_per_rank: ClassVar[int] = 1
    runs_ahead: ClassVar[bool] = False
    counts_on_graphs: bool = False
    """The plan leaves the host's time out, as stages are to be replayed."""

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        parts: tuple[int, ...],
        ties: tuple[ParameterTie, ...] = (),
        loss_head: LossHead,
        guards: WeightGuards | None = None,
        aliases: Mapping[str, str] | None = None,
        input_names: Sequence[str] = (),
        **pipeline_module_kwargs: Any,
    ) -> None:
        check_version()
        check_options(pipeline_module_kwargs)
        check_parts(parts, len(layers), self.stages_per_rank)
        ensure_process_group()
        ranks = (len(parts) - 1) // self.stages_per_rank
        check_world(ranks, pipeline_module_kwargs.get("topology"))
        self._planned_parts = list(parts)
        self._aliases = dict(aliases or {})
        self._fixed_shapes = FixedShapes(input_names)
        self._planned_parts[-1] += len(loss_head.layer_specs())
        self._ties = tuple(sorted(ties, key=lambda tie: tie.name))
        self._guards = guards
        with _quiet():
            super().__init__(
                layers=[*layers, *loss_head.layer_specs()],
                num_stages=ranks,
                loss_fn=loss_head,
                activation_checkpoint_interval=0,
                **pipeline_module_kwargs,
            )
        self._mark_for_clipping()
        self._idle = None
        if not any(map(is_counted, self.parameters())):
            self._idle = self.placeholder(0)
        replicate(
            self.parameters(),
            group=self._grid.get_data_parallel_group(),
            source=self._grid.dp_group[0],
        )
        share_buffers(
            {
                name: buffer
                for layer in self.local_layers()
                for name, buffer in layer.named_buffers(remove_duplicate=False)
            }
        )
        if self.computes_loss():
            loss_head.to(get_accelerator().device_name(self.local_rank))

    def forward(self, forward_input: Any) -> Any:
        """Run the stage; before the first batch check its parameters.

        Raises:
            RuntimeGuardError: They have another dtype than in the recording, or a
                micro-batch has another shape than the first one.
        """
        if self._guards is not None:
            for layer in self.local_layers():
                self._guards.check(layer.named_parameters(remove_duplicate=False))
            self._guards = None
        if self.counts_on_graphs and torch.is_grad_enabled():
            self._note_graphs()
        if self._receives_inputs() and not self.dynamic_shape:
            self._fixed_shapes.check(forward_input)
        outputs = super().forward(forward_input)
        if self._idle is not None and torch.is_grad_enabled():
            outputs = reach(outputs, self._idle)
        if self._hands_to_loss() and isinstance(outputs, tuple):
            # The engine keeps what it gets until a later micro-batch takes its place:
            # a list, which the loss empties once it has read it.
            return list(outputs)
        return outputs

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: FBT001, FBT002 - nn.Module's signature
        """Yield this rank's parameters so that in one tensor each is aligned.

        Args:
            recurse: As for ``nn.Module.parameters``.
        """
        yield from aligned(super().parameters(recurse))

    def original_named_parameters(
        self, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters under the names of the original model.

        Args:
            remove_duplicate: Yield a parameter once, under its first name in the
                original; else under every name by which a segment here knows it.
        """
        seen: set[str] = set()
        for layer in self.local_layers():
            for name, parameter in layer.named_parameters(remove_duplicate=False):
                shown = self._aliases.get(name, name) if remove_duplicate else name
                if shown not in seen:
                    seen.add(shown)
                    yield shown, parameter

    def placeholder(self, index: int) -> nn.Parameter:
        """Return what stands in an optimizer's group that has nothing on this stage.

        One zero without a gradient. It belongs to this module, because
        DeepSpeed looks up every optimized parameter's name there, but to no segment:
        no layer file holds it. Where a stage counts no parameter of its own, number 0
        is there from the start, and gets a gradient of zero.

        Args:
            index: Number of the group.
        """
        name = f"empty_group_{index}"
        if name not in self._parameters:
            device = get_accelerator().device_name(self.local_rank)
            held = (p for p in self.parameters() if p.is_floating_point())
            like = next(held, torch.zeros(1, device=device))
            parameter: Any = nn.Parameter(like.new_zeros(1))
            parameter.ds_pipe_replicated = False
            self.register_parameter(name, parameter)
            self._mark_for_clipping()
        found: nn.Parameter = self._parameters[name]
        return found

    def compile(self, *args: Any, **options: Any) -> None:
        """Run what the segments and the loss part compute under ``torch.compile``.

        What is between them stays as it is: packing, unpacking, recomputation.
        Compiles at the first batch.

        Args:
            *args: For ``torch.compile``.
            **options: For ``torch.compile``.
        """
        super().compile(*args, **options)
        self.loss_fn.compile(*args, **options)

    def expect_headers(self, *, repeat: bool, new: bool) -> None:
        """Say how what the stages receive in the next batch compares.

        Args:
            repeat: All its micro-batches have the same shapes, in the same order in
                memory: the numbers that come with their values need not be waited for.
            new: They may differ from those of the batch before.
        """
        for header in self._headers():
            header.expect(repeats=repeat, new=new)

    def check_headers(self) -> None:
        """Check what :meth:`expect_headers` has promised, before anything is updated.

        Raises:
            RuntimeGuardError: It did not hold.
        """
        for header in self._headers():
            header.check()

    def segments(self) -> list[Segment]:
        """Return this rank's segments, in order."""
        return [layer for layer in self.local_layers() if isinstance(layer, Segment)]

    def _headers(self) -> list[Header]:
        return [segment.header for segment in self.segments()]

    def reset_shapes(self) -> None:
        """Let the next batch have another shape than the ones before.

        For after ``engine.reset_activation_shape()``, which must run on every rank.
        """
        self._fixed_shapes.reset()

    def _note_graphs(self) -> None:
        """Say once, on the first stage, if nothing is replayed."""
        self.counts_on_graphs = False
        replayed = any(segment.is_replayed for segment in self.segments())
        if self.stage_id == 0 and not replayed:
            _log.warning(
                "the plan counts on CUDA graphs, but nothing is replayed: a slow host "
                "sets the pace; train with plan.initialize(cuda_graphs=True)"
            )

    def _receives_inputs(self) -> bool:
        """Whether the model's inputs are run, and sent on, here."""
        return self.stage_id == 0 and len(self._planned_parts) > 2  # noqa: PLR2004 - one stage has two bounds

    def _partition_layers(self, method: str = "uniform") -> None:  # noqa: ARG002 - the plan decides
        self.parts = self._planned_parts
        stage = self._grid.get_stage_id()
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def _build(self) -> None:
        # All that can fail on one rank alone is done before the groups are made:
        # there a rank would wait for one that has failed.
        with raise_on_all_ranks("building the stages"):
            super()._build()
            for parameter in self.parameters():
                forget_gradients(parameter)
            self._find_tied_parameters()
        check_ties(self._tied_parameters)

    def _mark_for_clipping(self) -> None:
        """Let the clip norm count every parameter once, on whatever stage it is.

        Without a mark DeepSpeed's fp32 clipping counts the first stage alone; its
        bf16 and ZeRO optimizers count all but what is replicated, marked or not.
        """
        parameter: Any
        for parameter in self.parameters():
            parameter.model_parallel = not parameter.ds_pipe_replicated


@contextmanager
def _quiet() -> Iterator[None]:
    """Swallow what DeepSpeed prints (not what it logs) while it builds."""
    with redirect_stdout(io.StringIO()):
        yield
