"""A folder, a file or a hub id → the files that hold tensors."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.errors import WeightsError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["Located", "locate"]

SAFETENSORS, INDEX = ".safetensors", ".index.json"
# In this order, as Hugging Face looks for them; then whatever there is one of.
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_KINDS = (
    "*.safetensors.index.json",
    "*.safetensors",
    "*.bin.index.json",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Files that hold tensors.

    Args:
        given: What the user wrote.
        file: The only file; None if there is an index.
        shards: Key → file, as an index says.
    """

    given: str
    file: Path | None = None
    shards: Mapping[str, Path] | None = None


def locate(given: str | os.PathLike[str]) -> Located:
    """Find the files that hold a model's tensors.

    Args:
        given: A folder (sharded with an index, or a single file), such an index, a
            file, or the id of a model in the local hub cache.

    Raises:
        WeightsError: There is nothing of the kind, or an index names a missing file.
    """
    path = Path(given).expanduser()
    if not path.exists():
        path = _cached(str(given))
    if path.is_dir():
        path = _in_folder(path)
    if path.name.endswith(INDEX):
        return Located(given=str(given), shards=_read_index(path))
    return Located(given=str(given), file=path)


def _in_folder(folder: Path) -> Path:
    for name in _NAMES:
        if (folder / name).is_file():
            return folder / name
    for kind in _KINDS:
        found = sorted(folder.glob(kind))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(each.name for each in found)
            raise WeightsError(
                f"{folder} holds several files of weights and no index: {names}",
                hint="pass the one to use",
            )
    raise WeightsError(
        f"{folder} holds no weights: there is none of {', '.join(_KINDS)}",
        hint="pass a folder that save_pretrained() wrote, or a file",
    )


def _read_index(path: Path) -> dict[str, Path]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        entries = {str(k): str(v) for k, v in content["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path} is no index of weights ({type(error).__name__}: {error})",
            hint='an index is JSON whose "weight_map" maps names to files',
        ) from error
    for name, file in entries.items():
        if not (path.parent / file).is_file():
            raise WeightsError(
                f"{path} says that {name!r} is in {file}, and there is no such file",
                hint="download or copy the folder again",
            )
    return {name: path.parent / file for name, file in entries.items()}


def _cached(given: str) -> Path:
    """Return the folder of a model that the hub's client has downloaded before."""
    nothing = f"there is no file or folder {given!r}"
    if not _HUB_ID.fullmatch(given):
        raise WeightsError(nothing, hint="check the path; every rank must see it")
    hint = (
        f"check the path; if it is a model of the Hugging Face hub, run `hf download "
        f"{given}` on every machine first: nothing is downloaded here"
    )
    try:
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError:
        raise WeightsError(nothing, hint=hint) from None
    try:
        return Path(hub.snapshot_download(given, local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError):
        message = f"{nothing}, nor a model of that id in the local hub cache"
        raise WeightsError(message, hint=hint) from None
