"""Copy the next micro-batches to the device while it computes on the ones before."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

__all__ = ["Prefetched"]

DEPTH = 2
"""Micro-batches that are on the device, or on their way, before they are used."""


class Prefetched:
    """A batch's micro-batches, of which the next ones are on the device already.

    DeepSpeed copies each when it is used, from pageable memory: the host waits until
    all that it has launched has run. Here each goes from pinned memory, on a stream of
    its own, some time before; a thread of its own pins it, since images take as long to
    be copied within the host's memory as many launches. On other devices than CUDA's
    micro-batches are handed out as they are.

    Args:
        device: Where they are used.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "prefetch", _begin, (device,))
        self._waiting: deque[Any] = deque()
        self._copied: deque[Future[tuple[Any, torch.cuda.Event]]] = deque()
        self._wanted = (True, True)

    def __len__(self) -> int:
        """Return how many have not been handed out."""
        return len(self._waiting) + len(self._copied)

    def load(self, batches: Iterable[Any], *, inputs: bool, labels: bool) -> None:
        """Take a batch's micro-batches in place of those that are left.

        Args:
            batches: Pairs of inputs and labels; what is no pair stays as it is.
            inputs: This rank uses the inputs.
            labels: This rank uses the labels.
        """
        for copy in self._copied:
            copy.cancel()
        self._copied.clear()
        self._waiting = deque(batches)
        self._wanted = (inputs, labels)
        self._copy_ahead()

    def next(self) -> Any:
        """Hand out the next micro-batch, on the device where it is wanted.

        Raises:
            IndexError: There is none left.
        """
        if self._stream is None:
            return self._waiting.popleft()
        batch, copied = self._copied.popleft().result()
        self._copy_ahead()
        here = torch.cuda.current_stream(self._stream.device)
        here.wait_event(copied)
        for tensor in pytree.tree_leaves(batch):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(here)
        return batch

    def _copy_ahead(self) -> None:
        while self._stream and self._waiting and len(self._copied) < DEPTH:
            batch = self._waiting.popleft()
            copy = self._thread.submit(_copy, batch, self._wanted, self._stream)
            self._copied.append(copy)


def _begin(device: torch.device) -> None:
    """Prepare the thread: else its device is the first GPU, and it takes all cores."""
    torch.cuda.set_device(device)
    torch.set_num_threads(1)


@torch.no_grad()
def _copy(
    batch: Any, wanted: tuple[bool, bool], stream: torch.cuda.Stream
) -> tuple[Any, torch.cuda.Event]:
    """Begin to copy what is wanted; return it with what says that it is there."""

    def moved(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if not tensor.is_pinned():
            # In the same order in memory: images may be channels-last.
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return tensor.to(stream.device, non_blocking=True)

    with torch.cuda.stream(stream):
        if isinstance(batch, tuple):
            batch = tuple(
                pytree.tree_map_only(Tensor, moved, part) if want else part
                for part, want in zip(batch, wanted, strict=True)
            )
        return batch, stream.record_event()
