"""Inputs to verify with: the example, or a batch that has the example's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partitioner.capture.inputs import CallArguments, resolve_example
from partitioner.errors import ExampleInputsError

if TYPE_CHECKING:
    from torch import Tensor

    from partitioner.graph import ModelGraph

__all__ = ["input_tensors"]


def input_tensors(graph: ModelGraph, inputs: Any) -> list[Tensor]:
    """Return the input tensors in the order of ``graph.inputs``.

    Args:
        graph: The recorded model.
        inputs: One micro-batch, in the form of ``example_inputs``; None: the example.

    Raises:
        ExampleInputsError: They have another form than the example inputs.
    """
    if inputs is None:
        args, kwargs = graph.example
        inputs = CallArguments(args=args, kwargs=dict(kwargs))
    example = resolve_example(graph.model, inputs)
    planned = [spec.name for spec in graph.inputs]
    given = [spec.name for spec in example.inputs]
    if planned != given:
        message = f"inputs are {given}, the plan was made for {planned}"
        raise ExampleInputsError(message, hint="pass the same inputs in the same form")
    return example.tensors()
