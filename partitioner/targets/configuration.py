"""A folder, a file or a name on the Hub → the configuration that transformers reads."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import try_to_load_from_cache

from partitioner.errors import TargetError
from partitioner.targets.failures import first_line

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "cached_configuration",
    "configuration_file",
    "library",
    "read_configuration",
]

_FILE = "config.json"
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A model's name on the Hub: ``gpt2`` or ``openai/whisper-tiny``."""


def configuration_file(place: str) -> Path | None:
    """Return the configuration that a path names; None: it names no such thing.

    Args:
        place: A folder with ``config.json``, or a JSON file, as typed.

    Raises:
        TargetError: The JSON file is missing.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        return path / _FILE if (path / _FILE).is_file() else None
    if path.suffix != ".json":
        return None
    if path.is_file():
        return path
    message = f"there is no file {place} (looked for {path.absolute()})"
    raise TargetError(message, hint="give a model's folder or its config.json")


def cached_configuration(place: str, *, sure: bool) -> Path | None:
    """Return the configuration of a model that was downloaded before.

    Nothing is downloaded here: a report must not depend on a network.

    Args:
        place: Its name on the Hub, as typed.
        sure: It can be nothing else, so that its absence is an error.

    Raises:
        TargetError: It is in no cache, and is nothing else.
    """
    path = Path(place).expanduser()
    if path.exists() or path.suffix == ".py" or not _NAME.fullmatch(place):
        return None
    if not sure and "/" not in place and _importable(place):
        return None
    found = try_to_load_from_cache(place, _FILE)
    if isinstance(found, str):
        return Path(found)
    if not sure and (path.parent.is_dir() or "/" not in place):
        return None  # a misspelt path or module: said by those who look for these
    message = f"{place} is no file or folder here, and no model in Hugging Face's cache"
    hint = (
        f"nothing is downloaded: `hf download {place} {_FILE} --local-dir FOLDER` "
        "fetches what is needed; then give FOLDER"
    )
    raise TargetError(message, hint=hint)


def _importable(name: str) -> bool:
    head = name.partition(".")[0]
    paths = [str(Path.cwd()), *sys.path]
    return importlib.machinery.PathFinder.find_spec(head, paths) is not None


def library(place: str) -> ModuleType:
    """Return transformers.

    Raises:
        TargetError: It is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        message = f"{place} is a Hugging Face model, and transformers is not installed"
        hint = "pip install 'fx-partitioner[hf]', or pip install transformers"
        raise TargetError(message, hint=hint) from error


def read_configuration(place: str, file: Path) -> Any:
    """Return the configuration as an object of transformers.

    Args:
        place: The target as typed.
        file: Its JSON file.

    Raises:
        TargetError: It cannot be read, or transformers does not know its kind.
    """
    transformers = library(place)
    _check(place, file, transformers)
    try:
        return transformers.AutoConfig.from_pretrained(
            str(file), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever a configuration's own checks raise
        message = f"transformers refuses {file}: {first_line(error)}"
        hint = f"see that the file is whole; transformers is {transformers.__version__}"
        raise TargetError(message, hint=hint) from error


def _check(place: str, file: Path, transformers: ModuleType) -> None:
    """Refuse what is no configuration, or one of a kind that is not known."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read as JSON: {first_line(error)}"
        raise TargetError(message, hint="fetch or write it again") from error
    kind = found.get("model_type") if isinstance(found, dict) else None
    if not isinstance(kind, str):
        message = f"{file} is no configuration of transformers: it has no model_type"
        hint = "give the folder of a transformers model, or a model.py that builds it"
        raise TargetError(message, hint=hint)
    if kind in transformers.CONFIG_MAPPING:
        return
    if "auto_map" in found:
        message = f"{place}, a {kind!r}, brings Python code of its own: it is not run"
    else:
        version = transformers.__version__
        message = f"{file}: transformers {version} has no architecture {kind!r}"
    hint = "update transformers, or write a model.py whose build_model() returns it"
    raise TargetError(message, hint=hint)
