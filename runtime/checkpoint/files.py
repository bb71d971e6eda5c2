"""A checkpoint's files: hashed as they are written, proven before they are read."""

from __future__ import annotations

import hashlib
import os
import pickle
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import (
    TorchCheckpointEngine,
)
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from partitioner.errors import CheckpointError
from partitioner.runtime.checkpoint.manifest import FileRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

__all__ = [
    "HashingEngine",
    "check_file",
    "read_states",
    "sync_folder",
    "write_durably",
]

_CHUNK = 1 << 22
# What DeepSpeed puts into its files beside tensors and plain data.
_KNOWN = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


class HashingEngine(TorchCheckpointEngine):
    """DeepSpeed's way to files, with a hash of each and no trust in pickles.

    Attributes:
        written: Size and hash of every file that was saved, by name.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.written: dict[str, FileRecord] = {}

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file, down to the disk.

        Raises:
            CheckpointError: It cannot be written, or holds something that could
                only be read back by trusting a pickle.
        """
        target = Path(path)
        with _told_as_ours(target, "written"), target.open("wb") as file:
            hashed = _Hashed(file)
            torch.save(state_dict, cast("IO[bytes]", hashed))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        read_states(target)
        self.written[target.name] = FileRecord(bytes=size, blake2b=hashed.digest)

    def load(self, path: str, map_location: Any = None) -> Any:  # noqa: ARG002 - the signature is DeepSpeed's
        """Read a file; tensors stay on disk until they are used."""
        return read_states(Path(path))


class _Hashed:
    """A file that hashes what goes through it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.blake2b()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: Any) -> int:
        self._hash.update(data)
        count: int = self._file.write(data)
        return count

    def flush(self) -> None:
        self._file.flush()


def read_states(path: Path) -> Any:
    """Read what :class:`HashingEngine` wrote; tensors are mapped, not read.

    Raises:
        CheckpointError: The file is missing, damaged, or holds objects of classes
            that are not known to be harmless.
    """
    with _told_as_ours(path, "read"), torch.serialization.safe_globals(_KNOWN):
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{path} holds an object that is neither a tensor nor plain data: "
                f"{_first_line(error)}",
                hint="keep tensors, numbers, text, lists and dicts in client_state, "
                "in the scheduler and in the data loader's state",
            ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Unsupported" in line]
    return lines[0] if lines else " ".join(str(error).split())[:200]


@contextmanager
def _told_as_ours(path: Path, done: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist") from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        text = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} could not be {done}: {text}") from error


def check_file(path: Path, expected: FileRecord) -> None:
    """Compare a file's size and hash with what was written.

    Raises:
        CheckpointError: It is missing, or not what was written.
    """
    with _told_as_ours(path, "read"), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.bytes:
            raise CheckpointError(
                f"{path} is damaged: {size} bytes, but {expected.bytes} were written"
            )
        found = hashlib.blake2b()
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest() != expected.blake2b:
        raise CheckpointError(
            f"{path} is damaged: its {size} bytes are not those that were written"
        )


def write_durably(path: Path, text: str) -> None:
    """Write a small file whole, and down to the disk before it takes its place.

    Raises:
        CheckpointError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _told_as_ours(path, "written"):
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries down to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
