"""Stages that share parameters: one group for each tie, and gradients summed in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepspeed import comm
from deepspeed.pipe import PipelineModule
from torch import nn

from partitioner.errors import EmitError
from partitioner.runtime.ties import ParameterTie, sum_tied_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TiedStages"]


class TiedStages(PipelineModule):
    """A pipeline that ties single parameters, not whole layers as DeepSpeed does.

    Not through TiedLayerSpec, which marks every parameter of its module as replicated,
    so that the clip norm would miss the rest of the segment.
    """

    _ties: tuple[ParameterTie, ...] = ()
    _tied_parameters: dict[str, Any]

    def local_layers(self) -> list[nn.Module]:
        """Return the segments that this rank runs, in order."""
        return list(self.forward_funcs)

    def _ranks_of(self, stages: Sequence[int]) -> list[int]:
        """Return the pipeline ranks that run some of the stages, in order."""
        return sorted({self._rank_of(stage) for stage in stages})

    def _rank_of(self, stage: int) -> int:
        return stage

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

    def _index_tied_modules(self) -> dict[str, Any]:
        """Make one communication group for each tie and data-parallel replica."""
        tied_comms: dict[str, Any] = {}
        for tie in self._ties:
            holders = self._ranks_of(tie.stages)
            if len(holders) == 1:  # stages of one rank share the parameter itself
                continue
            for replica in range(self._grid.data_parallel_size):
                ranks = [
                    self._grid.stage_to_global(stage_id=rank, data=replica)
                    for rank in holders
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

    def _find_tied_parameters(self) -> None:
        """Find this rank's copy of every tie."""
        self._tied_parameters = {
            tie.name: self._tied_parameter(tie)
            for tie in self._ties
            if self.stage_id in self._ranks_of(tie.stages)
        }

    def _tied_parameter(self, tie: ParameterTie) -> Any:
        names = {tie.name, *tie.aliases}
        found = {
            id(parameter): parameter
            for layer in self.local_layers()
            for name, parameter in layer.named_parameters(remove_duplicate=False)
            if name in names
        }
        if len(found) != 1:
            raise EmitError(
                f"stage {self.stage_id} holds {len(found)} parameters named "
                f"{' or '.join(sorted(names))}; a tie needs exactly one"
            )
        return next(iter(found.values()))


class _Holder(nn.Module):
    """A tied parameter in the shape of the module that DeepSpeed expects."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
