"""What records launches on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from partitioner.runtime.cuda_graphs.refusal import NotReplayedError, RecordingError

if TYPE_CHECKING:
    from collections.abc import Callable

Made = TypeVar("Made", bound=Tensor | None)

__all__ = ["CudaRecorder", "Recorder"]


class Recorder(Protocol):
    """Records what a function launches."""

    device_type: str
    """Where everything that a recorded function touches must be."""
    common_pool: Any
    """Memory for what nothing is left in between two replays."""

    def pool(self) -> Any:
        """Return memory of its own for what is recorded with it."""

    def random_state(self) -> bytes:
        """Return the state of the device's random generator."""

    def record(
        self, function: Callable[[], list[Made]], pool: Any
    ) -> tuple[list[Made], Callable[[], None]]:
        """Record a function, without effect.

        Args:
            function: Launches, and returns what it has made.
            pool: From :meth:`pool`. What a function leaves there is there when the next
                one is recorded with it.

        Returns:
            What it has made, and what makes it again, in the same memory.

        Raises:
            NotReplayedError: The function raised; nothing has changed.
            RecordingError: The device refused, and cannot go on.
        """


class CudaRecorder:
    """Records CUDA graphs on a stream of its own."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self.common_pool = self.pool()

    def pool(self) -> Any:
        """Return memory of its own for what is recorded with it."""
        return torch.cuda.graph_pool_handle()

    def random_state(self) -> bytes:
        """Return the state of the device's random generator."""
        return bytes(torch.cuda.get_rng_state().numpy())

    def record(
        self, function: Callable[[], list[Made]], pool: Any
    ) -> tuple[list[Made], Callable[[], None]]:
        """Record a function, see :meth:`Recorder.record`.

        Raises:
            NotReplayedError: The function raised; nothing has changed.
            RecordingError: CUDA refused, and cannot go on.
        """
        # A graph's memory cannot come from what torch's allocator keeps for later.
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Other threads (of NCCL, of the batches' prefetching) go on meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            made = _captured(graph, function)
        torch.cuda.current_stream().wait_stream(self._stream)
        return made, graph.replay


def _captured(
    graph: torch.cuda.CUDAGraph, function: Callable[[], list[Made]]
) -> list[Made]:
    try:
        made = function()
    except Exception as error:
        reason = _first_line(error)
        try:
            graph.capture_end()
        except RuntimeError:
            # torch's generator and allocator stay as they were during the recording.
            raise RecordingError(reason) from error
        raise NotReplayedError(reason) from error
    graph.capture_end()
    return made


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
