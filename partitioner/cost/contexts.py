"""What holds while a recorded operation is run again: its modes, and silence."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partitioner.graph import Region

__all__ = ["quiet", "recorded_modes"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from saying again what the recording has already made it say."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was_disabled


@contextlib.contextmanager
def recorded_modes(region: Region) -> Iterator[None]:
    """Enter the modes that were on when the node was recorded."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(region.grad_enabled))
        for _, dtype in region.autocast:
            # Fake tensors are on the CPU, whichever device the cast was meant for.
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        yield
