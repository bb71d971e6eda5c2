"""All tensors of one file or of several, by key, never much of them in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partitioner.errors import WeightsError
from partitioner.runtime.weights.readers import TensorFile, open_file

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from partitioner.runtime.weights.locate import Located

__all__ = ["TensorFiles"]


class TensorFiles:
    """The tensors of one file, or of several with an index.

    Files are mapped into memory: what was read counts as this process's memory until
    the map is let go, which happens after every ``limit`` bytes.

    Args:
        located: The files.

    Raises:
        WeightsError: The only file cannot be read.
    """

    def __init__(self, located: Located) -> None:
        self.given = located.given
        self.limit = 2**22
        self._readers: dict[Path, TensorFile] = {}
        self._read = 0
        self._places = dict(located.shards or {})
        if located.file is not None:
            keys = self._reader(located.file).keys()
            self._places = dict.fromkeys(keys, located.file)
            self.release()

    def keys(self) -> list[str]:
        """Return every tensor's key."""
        return list(self._places)

    def path(self, key: str) -> Path:
        """Return the file that has a tensor."""
        return self._places[key]

    def tensor(self, key: str) -> Tensor:
        """Return a tensor that reads the file when it is used, until ``release``.

        Raises:
            WeightsError: The file cannot be read.
        """
        found = self._reader(self.path(key)).tensor(key)
        if found.is_meta:
            message = f"{self.path(key)} has no values for {key!r}: it was on meta"
            raise WeightsError(message, hint="save a model that has its weights")
        return found

    def copy(self, key: str, out: Tensor) -> None:
        """Copy a tensor's values to ``out``, of the same shape.

        Raises:
            WeightsError: The file cannot be read.
        """
        source = self.tensor(key)
        if not (source.is_contiguous() and out.is_contiguous()):
            out.copy_(source)
            self.release()
            return
        step = max(1, self.limit // source.itemsize)
        flat = out.view(-1)
        for start in range(0, flat.numel(), step):
            part = self.tensor(key).view(-1)[start : start + step]
            flat[start : start + step].copy_(part)
            self._read += part.numel() * part.itemsize
            if self._read >= self.limit:
                del source, part
                self.release()
                source = self.tensor(key)

    def release(self) -> None:
        """Let go of the memory maps; no tensor may be used any more."""
        for reader in self._readers.values():
            reader.release()
        self._read = 0

    def _reader(self, path: Path) -> TensorFile:
        if path not in self._readers:
            self._readers[path] = open_file(path)
        return self._readers[path]
