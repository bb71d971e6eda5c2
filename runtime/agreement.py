"""All ranks run the same plan with the same versions, and fail together."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from partitioner.errors import (
    CheckpointError,
    PartitionerError,
    PlanMismatchError,
    RuntimeGuardError,
    WeightsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["agree", "ensure_process_group", "gather", "raise_on_all_ranks", "versions"]

_SHARED_MEMORY_OPERATOR = "deepspeed_shm_comm"
_LAUNCH_HINT = "start the script with `torchrun --nproc-per-node N` or `deepspeed`"


def ensure_process_group() -> None:
    """Join the process group that the launcher's environment describes.

    NCCL on an NVIDIA device, gloo on CPU. Does nothing to a group that exists.

    Raises:
        RuntimeGuardError: The script was not started by a launcher.
    """
    needed = ["LOCAL_RANK"]
    if not dist.is_initialized():
        needed += ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise RuntimeGuardError(
            "a pipeline needs one process per stage, and this one was not started "
            f"by a launcher: {', '.join(missing)} not set",
            hint=_LAUNCH_HINT,
        )
    accelerator = get_accelerator()
    kind = accelerator.device_name()
    if kind != "cpu":
        accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    backends = {"cuda": "nccl", "cpu": "gloo"}
    with _without_shared_memory_operator():
        # DeepSpeed's own layer must be up even where torch's group exists already.
        deepspeed.init_distributed(
            dist_backend=backends.get(kind, accelerator.communication_backend_name()),
            auto_mpi_discovery=False,
            verbose=False,
        )


@contextmanager
def _without_shared_memory_operator() -> Iterator[None]:
    """Keep DeepSpeed from compiling C++ for an all-reduce that only inference uses.

    On CPU it would do so when it joins a group: it needs a compiler, and minutes.
    """
    operators = deepspeed.ops.__compatible_ops__
    before = operators.get(_SHARED_MEMORY_OPERATOR, False)
    operators[_SHARED_MEMORY_OPERATOR] = False
    try:
        yield
    finally:
        operators[_SHARED_MEMORY_OPERATOR] = before


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all ranks."""
    try:
        own = metadata.version("fx-partitioner")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return {
        "torch": str(torch.__version__),
        "deepspeed": str(deepspeed.__version__),
        "fx-partitioner": own,
    }


def agree(payload: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """Return rank 0's payload on every rank, if all ranks made it of the same.

    A solver under a time limit may answer differently on two machines, so one
    answer is used; what it was computed from must be equal.

    Args:
        payload: What JSON can hold; its "fingerprint" is compared.
        what: What is agreed upon, for messages.

    Returns:
        Rank 0's payload.

    Raises:
        PlanMismatchError: The fingerprints differ; the same error on all ranks.
        RuntimeGuardError: The versions differ, or rank 0's payload cannot be sent.
    """
    encoded: list[str | None] = [None]
    with raise_on_all_ranks(what):
        encoded = [json.dumps(payload) if dist.get_rank() == 0 else None]
    _compare("versions", versions(), what, RuntimeGuardError)
    _compare("fingerprint", payload.get("fingerprint"), what, PlanMismatchError)
    dist.broadcast_object_list(encoded, src=0)
    result: dict[str, Any] = json.loads(str(encoded[0]))
    return result


@contextmanager
def raise_on_all_ranks(what: str) -> Iterator[None]:
    """Let no rank go on where another has failed.

    Every rank must enter. At the end they tell each other how it went; where a
    rank failed, all raise the same error, chained to its cause on that rank.

    Args:
        what: What is done inside, for messages.

    Raises:
        PlanMismatchError: The block raised one on some rank.
        CheckpointError: The block raised one on some rank.
        WeightsError: Likewise.
        RuntimeGuardError: The block raised another error on some rank.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failures = {rank: told for rank, told in enumerate(gather(_told(failure))) if told}
    if failures:
        rank = min(failures)
        kind, message, hint = failures[rank]
        raise _SHARED.get(kind, RuntimeGuardError)(
            f"{what} failed on rank {rank} ({len(failures)} of "
            f"{dist.get_world_size()} ranks failed): {message}",
            hint=hint,
        ) from failure


_SHARED: dict[str, type[PartitionerError]] = {
    "CheckpointError": CheckpointError,
    "PlanMismatchError": PlanMismatchError,
    "WeightsError": WeightsError,
}


def _told(failure: Exception | None) -> tuple[str, str, str] | None:
    """Return an error's kind, message and hint for the other ranks."""
    if failure is None:
        return None
    kind = type(failure).__name__
    if isinstance(failure, PartitionerError):
        return kind, failure.message, failure.hint
    return kind, f"{kind}: {failure}", ""


def _compare(
    kind: str, mine: Any, what: str, error: type[PlanMismatchError | RuntimeGuardError]
) -> None:
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(gather(mine)):
        by_value.setdefault(json.dumps(value, sort_keys=True), []).append(rank)
    if len(by_value) > 1:
        found = "; ".join(
            f"ranks {ranks}: {value}" for value, ranks in by_value.items()
        )
        raise error(
            f"{what}: {kind} differ between ranks: {found}",
            hint="all ranks must build the same model with the same packages; one "
            "whose code depends on the order of a set of strings needs the same "
            "PYTHONHASHSEED on all",
        )


def gather(mine: Any) -> list[Any]:
    """Return what every rank brings, by rank; every rank must call it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found
