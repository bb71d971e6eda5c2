"""All ranks agree on numbers of the host's without waiting for their devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["HostGroup"]


class HostGroup:
    """A group of all ranks whose messages stay on the hosts.

    NCCL's messages stand in line behind all that a device has still to run; the host
    would wait for that, and could not launch the next batch before the last one ends.
    Every rank must make one.
    """

    def __init__(self) -> None:
        mine = "gloo" in dist.get_backend()
        self.group: dist.ProcessGroup | None = (
            None if mine else dist.new_group(backend="gloo")
        )
        """None: the group of all ranks that there is."""

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the least of every number over all ranks; every rank must call."""
        told = torch.tensor(list(numbers))
        dist.all_reduce(told, op=dist.ReduceOp.MIN, group=self.group)
        found: list[int] = told.tolist()
        return found
