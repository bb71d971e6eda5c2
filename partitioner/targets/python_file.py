"""A Python file or a module's name → the module, imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from partitioner.errors import TargetError
from partitioner.targets.failures import described

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["existing_file", "imported", "is_file"]


def is_file(place: str) -> bool:
    """Tell a file's path from a module's name."""
    return place.endswith(".py") or "/" in place or Path(place).is_dir()


@contextmanager
def imported(place: str) -> Iterator[tuple[ModuleType, Path]]:
    """Import what a target names before its colon.

    Args:
        place: ``model.py`` or ``pkg.mod``.

    Yields:
        The module, and the folder that is importable for the whole block, since a
        forward may import a neighbour only when it runs. For ``pkg.mod`` it is the
        current folder.

    Raises:
        TargetError: It is missing, or fails to import (the error is chained).
    """
    if not is_file(place):
        folder = Path.cwd()
        with _importable(folder):
            yield _import_name(place, folder), folder
        return
    path = existing_file(place)
    name = _free_name(path.stem)
    with _importable(path.parent):
        module = _import_file(path, name)
        try:
            yield module, path.parent
        finally:
            sys.modules.pop(name, None)


def existing_file(place: str) -> Path:
    """Return the Python file of that name.

    Raises:
        TargetError: There is none; the hint lists what lies nearby.
    """
    path = Path(place).expanduser().resolve()
    if path.is_file():
        return path
    if path.is_dir():
        message = (
            f"{place} is a folder, neither a Python file nor a Hugging Face model: "
            "it has no config.json"
        )
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


def _import_file(path: Path, name: str) -> ModuleType:
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
        message = f"{path.name} failed to import: {described(error, path.parent)}"
        raise TargetError(message, hint=_import_hint(error)) from error
    return module


def _import_name(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (name == missing or name.startswith(f"{missing}.")):
            message = f"there is no module {name}: {error}"
            hint = (
                f"looked in {folder}, in the installed packages, and for a Hugging "
                "Face model of that name in its cache"
            )
        else:
            message = f"{name} failed to import: {described(error, folder)}"
            hint = _import_hint(error)
        raise TargetError(message, hint=hint) from error


def _import_hint(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name}, or run where it can be imported"
    if isinstance(error, SystemExit):
        return 'put what is not to run on import under if __name__ == "__main__":'
    return "see that python can run the file on its own"
