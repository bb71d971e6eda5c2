"""Say in words, on all ranks, what has failed on one of them in a step."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from partitioner.errors import PartitionerError, RuntimeGuardError, StageError
from partitioner.runtime.failures import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["lost_peers"]

_GLOO = re.compile(
    "connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE
)
"""What gloo's errors say, which have no type of their own."""

_calls = itertools.count()
"""Numbers the steps of all engines: every rank runs the same ones."""


@contextmanager
def lost_peers(stage: int, step: int, module: nn.Module) -> Iterator[None]:
    """Raise a clear error where this rank fails, or another cannot be reached any more.

    What fails here is left in the process group's store, where the others find it once
    they lose this rank. The store may be gone with its host, the first rank, unless a
    launcher keeps it (torchrun does).

    Args:
        stage: This rank's stage.
        step: The step that is being run, for messages.
        module: Holds this rank's segments.

    Raises:
        StageError: The model, the loss or the engine raised, here or on another rank.
        RuntimeGuardError: Communication failed inside, and nobody has said why.
    """
    call = next(_calls)
    try:
        yield
    except StopIteration:
        raise
    except PartitionerError as error:
        _tell(call, str(error))
        raise
    except Exception as error:
        me = f"stage {stage} (rank {dist.get_rank()})"
        place = place_of(error, module)
        if not place and _is_loss_of_peer(error):
            what = f"{me} lost another rank in step {step}"
            raise _lost(call, what, error) from error
        where = f", {place}" if place else ""
        text = f"{me} failed in step {step}{where}: {type(error).__name__}: {error}"
        _tell(call, text)
        raise StageError(
            text, hint="the other ranks cannot go on; the cause is chained to this"
        ) from error


def _is_loss_of_peer(error: Exception) -> bool:
    first = next(iter(str(error).splitlines()), "")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and _GLOO.search(first) is not None
    )


def _lost(call: int, what: str, error: Exception) -> PartitionerError:
    """Return what to raise for a rank that cannot be reached any more."""
    hint = "go on from the last checkpoint"
    told = _told(call)
    if told is not None:
        return StageError(f"{what}: {told}", hint=hint)
    first = next(iter(str(error).splitlines()), "")
    return RuntimeGuardError(
        f"{what}: its process has ended, or hangs ({first})",
        hint=f"the cause is in the output of the rank that ended first; {hint}",
    )


def _tell(call: int, text: str) -> None:
    """Leave the reason for the others; the first to fail counts."""
    message = json.dumps({"rank": dist.get_rank(), "text": text})
    try:
        _store().compare_set(_key(call), "", message)
    except (RuntimeError, ValueError):
        return  # with its host the store is gone, and so is whoever might read


def _told(call: int) -> str | None:
    """Return what the first rank to fail has left."""
    try:
        store = _store()
        if not store.check([_key(call)]):
            return None
        found = json.loads(store.get(_key(call)))
    except (RuntimeError, ValueError):
        return None
    return f"rank {found['rank']} has failed: {found['text']}"


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name


def _key(call: int) -> str:
    return f"partitioner/failure/{call}"
