"""Where a process stands among the others, and what they tell each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from partitioner.runtime.agreement import ensure_process_group

if TYPE_CHECKING:
    from pytorch_lightning.strategies import ParallelStrategy as Base

    from partitioner.lightning.library import Library
else:
    Base = object

__all__ = ["Placed"]


class Placed(Base):
    """The half of the strategy that knows of processes, not of models.

    Lightning starts the processes itself, as for its own strategies, unless a launcher
    (``torchrun``, ``deepspeed``) has done so.
    """

    lightning: Library
    """The library whose Trainer the strategy is for."""
    stages: int
    num_nodes = 1

    @property
    def root_device(self) -> torch.device:
        """This process's device."""
        device: torch.device = self.parallel_devices[self.local_rank]
        return device

    @property
    def num_processes(self) -> int:
        """How many processes a node has."""
        return len(self.parallel_devices or ())

    @property
    def replica(self) -> int:
        """Which copy of the pipeline this process belongs to."""
        # DeepSpeed numbers the stages in the outer loop.
        return int(self.global_rank) % self.replicas

    @property
    def replicas(self) -> int:
        """How many copies of the pipeline there are."""
        return max(1, int(self.world_size) // self.stages)

    @property
    def is_distributed(self) -> bool:
        """Whether several replicas share out the data."""
        return self.replicas > 1

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int]:
        """Which share of the data this process reads: all stages of a replica alike."""
        return {"num_replicas": self.replicas, "rank": self.replica}

    def _configure_launcher(self) -> None:
        launcher = self.lightning.part(
            "strategies.launchers.subprocess_script._SubprocessScriptLauncher"
        )
        self._launcher = launcher(
            self.cluster_environment, self.num_processes, self.num_nodes
        )

    def set_world_ranks(self) -> None:
        """Tell Lightning's own helpers which process this is."""
        environment = self.cluster_environment
        if environment is not None:
            rank = self.node_rank * self.num_processes + self.local_rank
            environment.set_global_rank(rank)
            environment.set_world_size(self.num_nodes * self.num_processes)
        self.lightning.part(
            "utilities.rank_zero.rank_zero_only"
        ).rank = self.global_rank

    def join(self) -> None:
        """Join the process group, with DeepSpeed's own layer."""
        environment = self.cluster_environment
        os.environ.update(
            RANK=str(self.global_rank),
            LOCAL_RANK=str(self.local_rank),
            WORLD_SIZE=str(self.world_size),
            MASTER_ADDR=str(environment.main_address),
            MASTER_PORT=str(environment.main_port),
        )
        ensure_process_group()

    def barrier(self, name: str | None = None) -> None:  # noqa: ARG002 - Lightning's signature
        """Wait for all processes."""
        if dist.is_initialized():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return one process's object on all."""
        if not dist.is_initialized():
            return obj
        told = [obj]
        dist.broadcast_object_list(told, src=src)
        return told[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean or the sum over the replicas; stages know the same values.

        Args:
            tensor: Anything else than a tensor is returned as it is.
            group: Reduce over these processes instead.
            reduce_op: "mean", "avg", "sum", or torch's own.
        """
        if not isinstance(tensor, Tensor) or not dist.is_initialized():
            return tensor
        mean = str(reduce_op).lower() in {"mean", "avg", "redoptype.avg"}
        total = tensor.detach().clone()
        operation = (
            dist.ReduceOp.SUM if mean or isinstance(reduce_op, str) else reduce_op
        )
        dist.all_reduce(total, op=operation, group=group or self._peers())
        if mean:
            count = dist.get_world_size(group or self._peers())
            total = total / count
        return total

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:  # noqa: A002, FBT001, FBT002 - Lightning's signature
        """Return whether all processes, or any, decided so."""
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)

    def _peers(self) -> Any:
        """Return the group of the processes that hold this stage of other replicas."""
        engine = getattr(self, "engine", None)
        return None if engine is None else engine.grid.get_data_parallel_group()
