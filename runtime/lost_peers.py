"""Say in words that another process of the pipeline has ended."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from partitioner.errors import RuntimeGuardError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["lost_peers"]

_GLOO = re.compile(
    "connection (closed|reset|refused)|broken pipe|timed out|socket", re.IGNORECASE
)
"""What gloo's errors say, which have no type of their own."""


@contextmanager
def lost_peers(stage: int, step: int) -> Iterator[None]:
    """Raise a clear error where another rank cannot be reached any more.

    Args:
        stage: This rank's stage.
        step: The step that is being run, for messages.

    Raises:
        RuntimeGuardError: Communication failed inside.
    """
    try:
        yield
    except RuntimeError as error:
        first = next(iter(str(error).splitlines()), "")
        if not isinstance(error, dist.DistError) and not _GLOO.search(first):
            raise
        raise RuntimeGuardError(
            f"stage {stage} (rank {dist.get_rank()}) lost another rank in step {step}: "
            f"its process has ended, or hangs ({first})",
            hint="the cause is in the output of the rank that ended first; go on from "
            "the last checkpoint",
        ) from error
