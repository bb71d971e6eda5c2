"""An imported module → its model, its example inputs and its loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from partitioner.errors import TargetError
from partitioner.targets.failures import described
from partitioner.targets.target import Target

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

__all__ = ["find_model"]

MODEL_NAMES = ("model", "build_model")
"""Attributes that are tried, in this order, when the target names none."""

INPUTS_NAME = "example_inputs"
LOSS_NAME, LABELS_NAME = "loss_fn", "example_labels"
"""A loss is priced only with labels beside it."""


def find_model(module: ModuleType, place: str, attribute: str, folder: Path) -> Target:
    """Return a module's model, with the inputs and the loss that lie next to it.

    Args:
        module: What was imported.
        place: Its name, as typed.
        attribute: What was typed after the colon; empty: the usual names are tried.
        folder: Paths below it are shortened in errors.

    Raises:
        TargetError: There is no model, or there are several, or a factory fails.
    """
    attribute = attribute or _default_attribute(module, place)
    name = f"{place}:{attribute}"
    model = _build(_lookup(module, place, attribute), name, folder)
    inputs, labels = (
        _made(module, each, place, folder) for each in (INPUTS_NAME, LABELS_NAME)
    )
    loss_fn = getattr(module, LOSS_NAME, None) if labels is not None else None
    return Target(
        name=name,
        model=model,
        example_inputs=inputs,
        loss_fn=loss_fn,
        example_labels=labels if loss_fn is not None else None,
    )


def _made(module: ModuleType, name: str, place: str, folder: Path) -> Any:
    """Return an attribute of the file, or what it returns if it is a function."""
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, (torch.Tensor, Mapping)):
        return _call(found, f"{place}:{name}", folder)
    return found


def _default_attribute(module: ModuleType, place: str) -> str:
    for name in MODEL_NAMES:
        if hasattr(module, name):
            return name
    models = _public(module, lambda value: isinstance(value, nn.Module))
    if len(models) == 1:
        return models[0]
    if models:
        message = f"{place} holds {len(models)} models: {', '.join(models)}"
        raise TargetError(message, hint=f"choose one: {place}:{models[0]}")
    wanted = " nor ".join(MODEL_NAMES)
    message = f"{place} holds no model: neither {wanted} nor another nn.Module object"
    raise TargetError(message, hint=_what_is_there(module, place))


def _lookup(module: ModuleType, place: str, attribute: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            message = f"{place} has no attribute {attribute}"
            raise TargetError(message, hint=_what_is_there(module, place))
        value = getattr(value, part)
    return value


def _build(value: Any, name: str, folder: Path) -> nn.Module:
    if isinstance(value, nn.Module):
        return value
    if not callable(value):
        kind = type(value).__name__
        message = f"{name} is a {kind}: neither an nn.Module nor callable"
        raise TargetError(message, hint="name an nn.Module or a function returning one")
    built = _call(value, name, folder)
    if isinstance(built, nn.Module):
        return built
    message = f"{name}() returned a {type(built).__name__}, not an nn.Module"
    raise TargetError(message, hint="return the model alone")


def _call(function: Callable[[], Any], name: str, folder: Path) -> Any:
    needed = _required_parameters(function)
    if needed:
        message = f"{name} cannot be called without arguments: needs {needed}"
        hint = "write a function without parameters that calls it, and name that one"
        raise TargetError(message, hint=hint)
    try:
        return function()
    except (Exception, SystemExit) as error:
        message = f"{name}() failed: {described(error, folder)}"
        raise TargetError(message) from error


def _required_parameters(function: Callable[..., Any]) -> str:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return ""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    )


def _public(module: ModuleType, keep: Callable[[Any], bool]) -> list[str]:
    names = (name for name in vars(module) if not name.startswith("_"))
    return [name for name in names if keep(getattr(module, name))]


def _what_is_there(module: ModuleType, place: str) -> str:
    """List what a target could have meant, objects before classes before functions."""

    def own(value: Any) -> bool:
        return getattr(value, "__module__", None) == module.__name__

    kinds: dict[str, Callable[[Any], bool]] = {
        "models": lambda value: isinstance(value, nn.Module),
        "classes": lambda value: (
            isinstance(value, type) and issubclass(value, nn.Module) and own(value)
        ),
        "functions": lambda value: inspect.isfunction(value) and own(value),
    }
    found = [(kind, _public(module, keep)) for kind, keep in kinds.items()]
    parts = [f"{kind} {', '.join(names)}" for kind, names in found if names]
    if not parts:
        return f"{place} defines no nn.Module and no function"
    first = next(names[0] for _, names in found if names)
    return f"found {'; '.join(parts)}: name one, as in {place}:{first}"
