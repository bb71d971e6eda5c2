"""TARGET of the command line → a model and its example inputs.

A target is ``model.py``, ``model.py:attr`` or ``pkg.mod:attr``; the attribute is an
``nn.Module``, or something that can be called without arguments and returns one.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from partitioner.errors import TargetError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Target", "open_target"]

MODEL_NAMES = ("model", "build_model")
"""Attributes that are tried, in this order, when the target names none."""

INPUTS_NAME = "example_inputs"
LOSS_NAME, LABELS_NAME = "loss_fn", "example_labels"
"""A loss is priced only with labels beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model that was found, with what its file says about its inputs."""

    name: str
    """The target with its attribute: ``model.py:build_model``."""
    model: nn.Module
    example_inputs: Any = None
    """One micro-batch as the file gives it; None: the file has none."""
    loss_fn: Any = None
    example_labels: Any = None
    """Loss and labels, if the file has both."""

    def arguments(self) -> dict[str, Any]:
        """Return what planning and measuring are given of the file."""
        return {
            "example_inputs": self.example_inputs,
            "loss_fn": self.loss_fn,
            "example_labels": self.example_labels,
        }


@contextmanager
def open_target(text: str) -> Iterator[Target]:
    """Load a target and keep its folder importable while the model is in use.

    The folder stays on ``sys.path`` for the whole block, since a forward may import
    a neighbour only when it runs. For ``pkg.mod:attr`` it is the current folder.

    Args:
        text: The target as typed.

    Yields:
        The model with its example inputs.

    Raises:
        TargetError: The file or module is missing, fails to import (the error is
            chained), holds no model or several, or its factory fails.
    """
    place, attribute = _split(text)
    if _is_file(place):
        path = _existing_file(place)
        folder, name = path.parent, _free_name(path.stem)
    else:
        path, folder, name = None, Path.cwd(), place
    with _importable(folder):
        if path:
            module = _import_file(path, name, folder)
        else:
            module = _import_name(name, folder)
        try:
            yield _find(module, place, attribute, folder)
        finally:
            if path:
                sys.modules.pop(name, None)


def _split(text: str) -> tuple[str, str]:
    place, _, attribute = text.partition(":")
    if place and (attribute or ":" not in text):
        return place, attribute
    message = f"target {text!r} is not of the form model.py[:attr] or pkg.mod:attr"
    raise TargetError(message, hint="write, for example, model.py:build_model")


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or Path(place).is_dir()


def _existing_file(place: str) -> Path:
    path = Path(place).expanduser().resolve()
    if path.is_file():
        return path
    if path.is_dir():
        message = f"{place} is a folder, not a Python file"
        nearby = path
    else:
        message = f"there is no file {place} (looked for {path})"
        nearby = path.parent
    found = sorted(file.name for file in nearby.glob("*.py"))
    listed = f"Python files in {nearby}: {', '.join(found)}" if found else ""
    raise TargetError(message, hint=listed or f"{nearby} holds no Python file")


def _free_name(stem: str) -> str:
    """Name the module like its file, unless that would replace another module."""
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"_target_{stem}" if taken or not stem.isidentifier() else stem


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _import_file(path: Path, name: str, folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path.name} cannot be loaded as Python source"
        raise TargetError(message, hint="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        message = f"{path.name} failed to import: {_describe(error, folder)}"
        raise TargetError(message, hint=_import_hint(error)) from error
    return module


def _import_name(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            message = f"there is no module {name}: {error}"
            hint = f"looked in {folder} and in the installed packages"
        else:
            message = f"{name} failed to import: {_describe(error, folder)}"
            hint = _import_hint(error)
        raise TargetError(message, hint=hint) from error


def _import_hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name}, or run where it can be imported"
    if isinstance(error, SystemExit):
        return 'put what is not to run on import under if __name__ == "__main__":'
    return "see that python can run the file on its own"


def _find(module: ModuleType, place: str, attribute: str, folder: Path) -> Target:
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
        message = f"{name}() failed: {_describe(error, folder)}"
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


def _describe(error: BaseException, folder: Path) -> str:
    """Write an error in one line, with the line of the user's code that raised it."""
    text = " ".join(str(error).split())
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        path, line = Path(error.filename or "?"), error.lineno
        return f"{type(error).__name__}: {error.msg} ({_short(path, folder)}:{line})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    if not own:
        return described
    return f"{described} ({_short(Path(own[-1].filename), folder)}:{own[-1].lineno})"


def _is_users(filename: str) -> bool:
    """Tell the user's code from Python's, from installed packages' and from ours."""
    path = Path(filename)
    libraries = (Path(traceback.__file__).parent, Path(__file__).parent)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    in_library = any(path.is_relative_to(library) for library in libraries)
    return not (filename.startswith("<") or installed or in_library)


def _short(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path
