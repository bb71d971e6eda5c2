"""Find the example inputs and take them apart into named tensor leaves."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from partitioner.capture.tree import flatten, map_tree
from partitioner.errors import ExampleInputsError, ForwardError
from partitioner.graph import InputSpec

__all__ = ["CallArguments", "Example", "forward_error", "resolve_example"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArguments:
    """Example inputs with positional and keyword arguments together."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    """What was assumed in making them, for the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Example inputs of one micro-batch, bound to the forward's signature."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[InputSpec, ...]
    notes: tuple[str, ...] = ()

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensor leaves, in the order of ``inputs``."""
        return [leaf for _, leaf in _leaves(self.args, self.kwargs)]

    def with_tensors(
        self, tensors: list[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return (args, kwargs) with the tensor leaves replaced, in order."""
        queue = iter(tensors)

        def leaf(value: Any) -> Any:
            return next(queue) if isinstance(value, torch.Tensor) else value

        return map_tree(leaf, self.args), map_tree(leaf, self.kwargs)


def resolve_example(model: nn.Module, example_inputs: Any) -> Example:
    """Return the example inputs, from the argument or from the model itself.

    Args:
        model: May carry ``example_input_array`` (Lightning) or ``dummy_inputs``
            (Hugging Face).
        example_inputs: A tensor (the first argument), a tuple or list (positional),
            a mapping (keywords), or None. One micro-batch.

    Raises:
        ExampleInputsError: There are none, or they do not fit the signature.
    """
    notes: list[str] = []
    if example_inputs is None:
        example_inputs = _carried(model, notes)
    if isinstance(example_inputs, CallArguments):
        notes += example_inputs.notes
    args, kwargs = _as_call(example_inputs)
    _check_binds(model, args, kwargs)
    leaves = _leaves(args, kwargs)
    if not leaves:
        message = f"example_inputs for {type(model).__name__} hold no tensor"
        raise ExampleInputsError(message, hint="pass one micro-batch of tensors")
    names = _names(model, [path for path, _ in leaves])
    inputs = tuple(
        InputSpec(name=name, path=path, shape=tuple(leaf.shape), dtype=leaf.dtype)
        for name, (path, leaf) in zip(names, leaves, strict=False)
    )
    return Example(args=args, kwargs=kwargs, inputs=inputs, notes=tuple(notes))


def _carried(model: nn.Module, notes: list[str]) -> Any:
    array = getattr(model, "example_input_array", None)
    if array is not None:
        notes.append("example inputs: the model's own example_input_array")
        return array
    dummy = getattr(model, "dummy_inputs", None)
    if dummy is not None:
        notes.append(
            "example inputs: the model's own dummy_inputs, which are tiny: costs are "
            "those of a tiny batch; pass example_inputs= for a real plan"
        )
        return dummy
    name = type(model).__name__
    message = (
        f"no example inputs for {name}: example_inputs was not given, and the model "
        "has neither example_input_array nor dummy_inputs"
    )
    parameters = list(_signature(model).parameters)
    wanted = ", ".join(parameters[:4]) or "no arguments"
    hint = (
        "pass example_inputs=: one micro-batch as a tensor, a tuple of positional "
        f"arguments or a dict of keyword arguments; {name}.forward takes {wanted}"
    )
    raise ExampleInputsError(message, hint=hint)


def _as_call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, CallArguments):
        return example_inputs.args, example_inputs.kwargs
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping):
        return (), {str(key): value for key, value in example_inputs.items()}
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    found = type(example_inputs).__name__
    message = f"example_inputs is a {found}"
    hint = "pass a tensor, a tuple of positional arguments or a dict of keywords"
    raise ExampleInputsError(message, hint=hint)


def _signature(model: nn.Module) -> inspect.Signature:
    """Return the forward's signature; traced modules have none and take anything."""
    try:
        return inspect.signature(model.forward)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: (args, kwargs))


def _check_binds(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    signature = _signature(model)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = type(model).__name__
        message = f"example_inputs do not fit {name}.forward{signature}: {error}"
        hint = "give each required argument by position (tuple) or by name (dict)"
        raise ExampleInputsError(message, hint=hint) from error


def _leaves(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[tuple[str | int, ...], torch.Tensor]]:
    found: list[tuple[tuple[str | int, ...], torch.Tensor]] = []
    for path, leaf in flatten({"args": args, "kwargs": kwargs}):
        if isinstance(leaf, torch.Tensor):
            found.append((tuple(step[1] for step in path), leaf))
    return found


def _names(model: nn.Module, paths: list[tuple[str | int, ...]]) -> list[str]:
    """Name each leaf after the forward's parameter: ``mask``, ``states_0``."""
    parameters = list(_signature(model).parameters.values())
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    names: list[str] = []
    for path in paths:
        head, rest = path[1], path[2:]
        if path[0] == "args":
            index = int(head)
            known = index < len(positional)
            head = positional[index] if known else f"args_{index}"
        names.append("_".join(str(part) for part in (head, *rest)))
    return names


def forward_error(model: nn.Module, example: Example, error: Exception) -> ForwardError:
    """Return the error for a forward that raised on the example inputs."""
    name = type(model).__name__
    given = ", ".join(
        f"{spec.name}: {str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}"
        for spec in example.inputs
    )
    first = str(error).splitlines()[0] if str(error) else ""
    detail = f"{type(error).__name__}: {first}"
    message = f"{name}.forward failed on the example inputs ({given}): {detail}"
    hint = "check the shapes and dtypes of example_inputs against the forward"
    return ForwardError(message, hint=hint)
