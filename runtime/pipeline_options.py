"""What a pipeline module is given must fit the plan, DeepSpeed and the processes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from deepspeed import comm
from deepspeed.accelerator import get_accelerator

from partitioner.errors import EmitError, OptionError, RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "OLDEST_DEEPSPEED",
    "check_options",
    "check_parts",
    "check_precision",
    "check_version",
    "check_world",
    "version_numbers",
]

OLDEST_DEEPSPEED = (0, 19, 3)
"""Before, gradients were scaled by 1/micro-batches again at each earlier stage."""

_PLANNED = {
    "layers",
    "num_stages",
    "loss_fn",
    "partition_method",
    "activation_checkpoint_interval",
    "activation_checkpoint_func",
    "checkpointable_layers",
}


def check_version() -> None:
    """Refuse a DeepSpeed whose pipelines compute other gradients.

    Raises:
        RuntimeGuardError: It is too old.
    """
    if version_numbers(deepspeed.__version__) < OLDEST_DEEPSPEED:
        needed = ".".join(map(str, OLDEST_DEEPSPEED))
        raise RuntimeGuardError(
            f"DeepSpeed {deepspeed.__version__} scales pipeline gradients wrongly; "
            f"{needed} is the first version that does not",
            hint=f"pip install 'deepspeed>={needed}'",
        )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, without what follows a plus."""
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:3])


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what the plan decides.

    Raises:
        OptionError: An option is one of these.
    """
    given = sorted(_PLANNED & set(options))
    if given:
        raise OptionError(
            f"{', '.join(given)}: decided by the plan",
            hint="leave it out; partition() has an argument for it",
        )


def check_parts(parts: tuple[int, ...], layers: int, stages_per_rank: int) -> None:
    """Check that ``parts`` cuts the layers into stages for whole ranks.

    Raises:
        EmitError: It does not.
    """
    rising = all(start < stop for start, stop in itertools.pairwise(parts))
    if len(parts) < 2 or parts[0] != 0 or parts[-1] != layers or not rising:  # noqa: PLR2004 - one stage has two bounds
        raise EmitError(
            f"parts {parts} do not cut {layers} segments into non-empty stages"
        )
    if (len(parts) - 1) % stages_per_rank:
        raise EmitError(
            f"{len(parts) - 1} stages do not make {stages_per_rank} for each rank"
        )


def check_precision(dtype: torch.dtype) -> None:
    """Check that this rank's device trains in the plan's precision.

    Raises:
        RuntimeGuardError: DeepSpeed's engine would refuse it.
    """
    accelerator = get_accelerator()
    supported = {
        torch.float16: accelerator.is_fp16_supported,
        torch.bfloat16: accelerator.is_bf16_supported,
    }
    if dtype in supported and not supported[dtype]():
        raise RuntimeGuardError(
            f"the plan is for {dtype}, which DeepSpeed does not train in on this "
            f"{accelerator.device_name()}",
            hint='partition(…, dtype="bfloat16") on a CPU or a recent GPU, else '
            'dtype="float32"',
        )


def check_world(ranks: int, topology: Any) -> None:
    """Check the number of processes and the user's topology.

    Args:
        ranks: Pipeline ranks that the plan needs.
        topology: The user's ``ProcessTopology``, or None.

    Raises:
        RuntimeGuardError: The processes are no multiple of the ranks.
        OptionError: The topology is for another pipeline, or splits tensors.
    """
    world = comm.get_world_size()
    if world % ranks:
        raise RuntimeGuardError(
            f"{world} processes for {ranks} stages: "
            "the number of processes must be a multiple of the stages",
            hint=f"start {ranks} processes, or {ranks} times the replicas",
        )
    if topology is None:
        return
    if topology.get_dim("pipe") != ranks:
        raise OptionError(
            f"the topology has {topology.get_dim('pipe')} stages; the plan has {ranks}"
        )
    if topology.get_dim("model") > 1:
        raise OptionError(
            "the topology splits tensors over "
            f"{topology.get_dim('model')} ranks, but a segment holds whole parameters",
            hint="use the axes pipe and data alone",
        )
