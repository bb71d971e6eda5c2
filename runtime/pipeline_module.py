"""DeepSpeed's PipelineModule with the plan's bounds, ties per parameter and marks."""

from __future__ import annotations

import io
import itertools
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

from partitioner.errors import EmitError, OptionError, RuntimeGuardError
from partitioner.runtime.agreement import ensure_process_group, raise_on_all_ranks
from partitioner.runtime.loss import LossHead
from partitioner.runtime.ties import ParameterTie, check_ties, sum_tied_gradient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partitioner.runtime.guards import WeightGuards

__all__ = ["ParameterTie", "PartitionedPipelineModule"]

# Before, gradients were scaled by 1/micro-batches again at each earlier stage.
_OLDEST_DEEPSPEED = (0, 19, 3)


class PartitionedPipelineModule(PipelineModule):
    """A pipeline whose stages, ties and checkpoints are those of a plan.

    Args:
        layers: One spec for each segment.
        parts: First segment of each stage, and the number of segments: stage s
            runs segments ``parts[s]`` to ``parts[s + 1] - 1``.
        ties: Parameters that live on several stages.
        loss_head: The loss on the last stage.
        guards: What must hold of the parameters when the first batch runs, after
            DeepSpeed has cast and moved them.
        **pipeline_module_kwargs: Further options of PipelineModule.

    Raises:
        OptionError: An option contradicts the plan.
        EmitError: ``parts`` or a tie does not fit the layers.
        RuntimeGuardError: The DeepSpeed version, the number of processes, or a
            stage without anything to train.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        *,
        parts: tuple[int, ...],
        ties: tuple[ParameterTie, ...] = (),
        loss_head: LossHead,
        guards: WeightGuards | None = None,
        **pipeline_module_kwargs: Any,
    ) -> None:
        _check_version()
        _check_options(pipeline_module_kwargs)
        _check_parts(parts, len(layers))
        ensure_process_group()
        stages = len(parts) - 1
        _check_world(stages, pipeline_module_kwargs.get("topology"))
        self._planned_parts = list(parts)
        self._ties = tuple(sorted(ties, key=lambda tie: tie.name))
        self._tied_parameters: dict[str, Any] = {}
        self._guards = guards
        with _quiet():
            super().__init__(
                layers=layers,
                num_stages=stages,
                loss_fn=loss_head,
                activation_checkpoint_interval=0,
                **pipeline_module_kwargs,
            )
        self._mark_for_clipping()
        loss_head.to(get_accelerator().device_name(self.local_rank))

    def train(self, mode: bool = True) -> PartitionedPipelineModule:  # noqa: FBT001, FBT002 - nn.Module's signature
        """Set the mode of the stage and of the loss, which is no module."""
        super().train(mode)
        if isinstance(self.loss_fn, LossHead):
            self.loss_fn.train(mode)
        return self

    def forward(self, forward_input: Any) -> Any:
        """Run the stage; before the first batch check its parameters.

        Raises:
            RuntimeGuardError: They have another dtype than in the recording.
        """
        if self._guards is not None:
            for layer in self.forward_funcs:
                self._guards.check(layer.named_parameters(remove_duplicate=False))
            self._guards = None
        outputs = super().forward(forward_input)
        if self._hands_to_loss() and isinstance(outputs, tuple):
            # The engine keeps what it gets until a later micro-batch takes its place:
            # a list, which the loss empties once it has read it.
            return list(outputs)
        return outputs

    def _hands_to_loss(self) -> bool:
        """Whether this stage trains and is the last one."""
        return torch.is_grad_enabled() and self.stage_id == self.num_stages - 1

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """Sum the gradients of tied parameters, and leave none to the engine.

        The engine asks for this list when it reduces tied gradients. It would sum
        ``.grad`` alone, which is None where ZeRO-1 accumulates in another dtype,
        and skip a stage without a gradient while the others wait for it.
        """
        self.allreduce_tied_weight_gradients()
        return []

    def allreduce_tied_weight_gradients(self) -> None:
        """Sum the gradients of tied parameters over the stages."""
        for entry in self.tied_comms.values():
            parameter, group = entry["module"].weight, entry["group"]
            if parameter.requires_grad:
                sum_tied_gradient(parameter, group)

    def _partition_layers(self, method: str = "uniform") -> None:  # noqa: ARG002 - the plan decides
        self.parts = self._planned_parts
        stage = self._grid.get_stage_id()
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def _build(self) -> None:
        # All that can fail on one rank alone is done before the groups are made:
        # there a rank would wait for one that has failed.
        with raise_on_all_ranks("building the stages"):
            super()._build()
            self._check_trainable()
            self._tied_parameters = {
                tie.name: self._tied_parameter(tie)
                for tie in self._ties
                if self.stage_id in tie.stages
            }
        check_ties(self._tied_parameters)

    def _index_tied_modules(self) -> dict[str, Any]:
        """Make one communication group for each tie and data-parallel replica.

        Not through TiedLayerSpec, which marks every parameter of its module as
        replicated, so that the clip norm would miss the rest of the segment.
        """
        tied_comms: dict[str, Any] = {}
        for tie in self._ties:
            for replica in range(self._grid.data_parallel_size):
                ranks = [
                    self._grid.stage_to_global(stage_id=stage, data=replica)
                    for stage in sorted(tie.stages)
                ]
                group = comm.new_group(ranks=ranks)
                if self.global_rank in ranks:
                    parameter = self._tied_parameters[tie.name]
                    parameter.ds_pipe_replicated = self.global_rank != ranks[0]
                    tied_comms[tie.name] = {
                        "ranks": ranks,
                        "group": group,
                        "weight_attr": ["weight"],
                        "module": _Holder(parameter),
                    }
        return tied_comms

    def _synchronize_tied_weights(self) -> None:
        for entry in self.tied_comms.values():
            comm.broadcast(
                entry["module"].weight.data,
                src=min(entry["ranks"]),
                group=entry["group"],
            )

    def _tied_parameter(self, tie: ParameterTie) -> Any:
        names = {tie.name, *tie.aliases}
        found = {
            id(parameter): parameter
            for layer in self.forward_funcs
            for name, parameter in layer.named_parameters(remove_duplicate=False)
            if name in names
        }
        if len(found) != 1:
            raise EmitError(
                f"stage {self.stage_id} holds {len(found)} parameters named "
                f"{' or '.join(sorted(names))}; a tie needs exactly one"
            )
        return next(iter(found.values()))

    def _mark_for_clipping(self) -> None:
        """Let the clip norm count every parameter once, on whatever stage it is.

        Without a mark DeepSpeed's fp32 clipping counts the first stage alone; its
        bf16 and ZeRO optimizers count all but what is replicated, marked or not.
        """
        for parameter in self.parameters():
            parameter.model_parallel = not parameter.ds_pipe_replicated

    def _check_trainable(self) -> None:
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise RuntimeGuardError(
                f"stage {self.stage_id} has no parameter that requires grad, and "
                "DeepSpeed cannot build an optimizer for it",
                hint="use fewer stages, or train at least one parameter of each",
            )


class _Holder(nn.Module):
    """A tied parameter in the shape of the module that DeepSpeed expects."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


@contextmanager
def _quiet() -> Iterator[None]:
    """Swallow what DeepSpeed prints (not what it logs) while it builds."""
    with redirect_stdout(io.StringIO()):
        yield


def _check_version() -> None:
    numbers = deepspeed.__version__.split("+")[0].split(".")[:3]
    if tuple(int(number) for number in numbers) < _OLDEST_DEEPSPEED:
        needed = ".".join(map(str, _OLDEST_DEEPSPEED))
        raise RuntimeGuardError(
            f"DeepSpeed {deepspeed.__version__} scales pipeline gradients wrongly; "
            f"{needed} is the first version that does not",
            hint=f"pip install 'deepspeed>={needed}'",
        )


def _check_options(options: dict[str, Any]) -> None:
    planned = {
        "layers",
        "num_stages",
        "loss_fn",
        "partition_method",
        "activation_checkpoint_interval",
        "activation_checkpoint_func",
        "checkpointable_layers",
    }
    given = sorted(planned & set(options))
    if given:
        raise OptionError(
            f"{', '.join(given)}: decided by the plan",
            hint="leave it out; partition() has an argument for it",
        )


def _check_parts(parts: tuple[int, ...], layers: int) -> None:
    rising = all(start < stop for start, stop in itertools.pairwise(parts))
    if len(parts) < 2 or parts[0] != 0 or parts[-1] != layers or not rising:  # noqa: PLR2004 - one stage has two bounds
        raise EmitError(
            f"parts {parts} do not cut {layers} segments into non-empty stages"
        )


def _check_world(stages: int, topology: Any) -> None:
    world = comm.get_world_size()
    if world % stages:
        raise RuntimeGuardError(
            f"{world} processes for {stages} stages: "
            "the number of processes must be a multiple of the stages",
            hint=f"start {stages} processes, or {stages} times the replicas",
        )
    if topology is None:
        return
    if topology.get_dim("pipe") != stages:
        raise OptionError(
            f"the topology has {topology.get_dim('pipe')} stages; the plan has {stages}"
        )
    if topology.get_dim("model") > 1:
        raise OptionError(
            "the topology splits tensors over "
            f"{topology.get_dim('model')} ranks, but a segment holds whole parameters",
            hint="use the axes pipe and data alone",
        )
