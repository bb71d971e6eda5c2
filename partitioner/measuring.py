"""Timing the parts of a model, to plan with them anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.capture import capture
from partitioner.cost import Loss, Measurements, loss_graph, measure
from partitioner.dtypes import as_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

__all__ = ["measure_model"]


def measure_model(
    model: nn.Module,
    *,
    example_inputs: Any = None,
    dtype: torch.dtype | str | None = None,
    device: str | None = None,
    compiled: bool = False,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    example_labels: Any = None,
) -> Measurements:
    """Time the parts of a model here, to plan with them anywhere.

    Args:
        model: As for :func:`~partitioner.partition`.
        example_inputs: As for :func:`~partitioner.partition`.
        dtype: As for :func:`~partitioner.partition`.
        device: ``"cuda"`` or ``"cpu"``; None: the GPU that is present, else the CPU.
        compiled: Repeated modules, and the loss, will run under ``torch.compile``.
        loss_fn: As for :func:`~partitioner.partition`.
        example_labels: As for :func:`~partitioner.partition`.

    Returns:
        The timings, for ``partition(measurements=...)`` or :meth:`Measurements.save`.

    Raises:
        PartitionerError: The model cannot be recorded, or the device is not known.
    """
    loss = Loss.of(loss_fn, example_labels)
    graph = capture(model, example_inputs, dtype=as_dtype(dtype))
    found = measure(graph, device=device, compiled=compiled)
    if loss:  # the cache on disk hands on what was timed before
        found = measure(loss_graph(graph, loss), device=device, compiled=compiled)
    return found
