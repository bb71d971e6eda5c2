"""Keep timings in the user's cache folder, one file for a device and a torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from platformdirs import user_cache_path

from partitioner.cost.measurements import Measurements
from partitioner.errors import CostError

if TYPE_CHECKING:
    import os

__all__ = ["Store", "device_here", "device_name"]


def device_here(device: str | torch.device | None) -> torch.device:
    """Return the device to time on; None: the GPU that is present, else the CPU."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def device_name(device: torch.device) -> str:
    """Return what the driver calls a GPU, or the processor and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


class Store:
    """The file with what was timed before.

    Args:
        device: Where things are timed.
        compiled: Whether blocks run under ``torch.compile``.
        folder: Its folder; None: the user's cache.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        compiled: bool,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        name = f"{device_name(device)} torch {torch.__version__}"
        name += " compiled" if compiled else ""
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-").lower()
        self._folder = Path(folder or user_cache_path("fx-partitioner"))
        self.path = self._folder / f"{stem}.json"

    def load(self) -> Measurements | None:
        """Return what is there; None without a file, or with one of another version."""
        if not self.path.exists():
            return None
        try:
            return Measurements.load(self.path)
        except CostError:
            return None  # a cache: what cannot be read is measured again

    def save(self, found: Measurements) -> None:
        """Write the file.

        Raises:
            PartitionerError: It cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"no cache folder at {self._folder}: {error.strerror}"
            raise CostError(message, hint="pass cache_folder=") from error
        found.save(self.path)
