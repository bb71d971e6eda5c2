"""Files of tensors: read lazily, through memory maps that are let go again."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from partitioner.errors import WeightsError
from partitioner.runtime.weights.locate import SAFETENSORS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TensorFile", "open_file"]

_NESTED = ("state_dict", "model_state_dict", "model", "module")


class TensorFile(Protocol):
    """One file of tensors by name."""

    path: Path

    def keys(self) -> list[str]:
        """Return the names of its tensors."""

    def tensor(self, key: str) -> Tensor:
        """Return a tensor that reads its memory from the file when it is used."""

    def release(self) -> None:
        """Let go of the memory that was read; no tensor may be used any more."""


def open_file(path: Path) -> TensorFile:
    """Return a reader for a file, by its suffix."""
    if path.suffix == SAFETENSORS:
        return _SafetensorsFile(path)
    return _TorchFile(path)


class _SafetensorsFile:
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: Any = None

    def keys(self) -> list[str]:
        """Return the names of its tensors."""
        return list(self._opened("its header").keys())

    def tensor(self, key: str) -> Tensor:
        """Return a tensor that reads its memory from the file when it is used."""
        handle = self._opened(repr(key))
        try:
            tensor: Tensor = handle.get_tensor(key)
        except (SafetensorError, RuntimeError, ValueError, KeyError) as error:
            raise _unreadable(self.path, repr(key), error) from error
        return tensor

    def release(self) -> None:
        """Let go of the memory that was read."""
        self._handle = None

    def _opened(self, what: str) -> Any:
        if self._handle is None:
            try:
                self._handle = safe_open(self.path, framework="pt", device="cpu")
            except (SafetensorError, OSError, RuntimeError, ValueError) as error:
                raise _unreadable(self.path, what, error) from error
        return self._handle


class _TorchFile:
    """A file of ``torch.save``: a state dict, or a dict that holds one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded: Mapping[str, Tensor] | None = None

    def keys(self) -> list[str]:
        """Return the names of its tensors."""
        return list(self._opened("its state dict"))

    def tensor(self, key: str) -> Tensor:
        """Return a tensor that reads its memory from the file when it is used."""
        tensors = self._opened(repr(key))
        if key not in tensors:
            message = f"{self.path} has no tensor {key!r}, though the index says so"
            raise WeightsError(message, hint="download or copy the folder again")
        return tensors[key]

    def release(self) -> None:
        """Let go of the memory that was read."""
        self._loaded = None

    def _opened(self, what: str) -> Mapping[str, Tensor]:
        if self._loaded is None:
            try:
                content = torch.load(
                    self.path, map_location="cpu", weights_only=True, mmap=True
                )
            except pickle.UnpicklingError as error:
                raise WeightsError(
                    f"{self.path} holds more than tensors: {_first_line(error)}",
                    hint="save the state dict alone: "
                    "torch.save(model.state_dict(), path)",
                ) from error
            except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
                raise _unreadable(self.path, what, error) from error
            self._loaded = _state_dict(content, self.path)
        return self._loaded


def _state_dict(content: Any, path: Path) -> Mapping[str, Tensor]:
    """Find the state dict in what was loaded."""
    places = [content]
    if isinstance(content, Mapping):
        places += [content[name] for name in _NESTED if name in content]
    for place in places:
        if isinstance(place, Mapping):
            tensors = {k: v for k, v in place.items() if isinstance(v, Tensor)}
            if tensors:
                return tensors
    found = ", ".join(map(str, content)) if isinstance(content, Mapping) else ""
    raise WeightsError(
        f"{path} holds no state dict, but a {type(content).__name__}"
        f"{f' with {found}' if found else ''}",
        hint="save one: torch.save(model.state_dict(), path)",
    )


def _unreadable(path: Path, what: str, error: Exception) -> WeightsError:
    return WeightsError(
        f"cannot read {what} from {path} ({type(error).__name__}: "
        f"{_first_line(error)})",
        hint="the file is cut short or no file of weights: download or save it again",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
