"""GPUs as Linux lists them on the PCI bus: their NUMA node, and the link they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Accelerator", "accelerators", "cpu_numbers"]

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_CLASSES = ("0x03", "0x12")
"""Display controllers, and processing accelerators (PCI Code and ID Assignment)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU on the bus; None: the kernel does not say."""

    address: str
    vendor: str
    numa_node: int | None
    speed: str | None
    """Link speed now, like "16.0 GT/s PCIe"."""
    max_speed: str | None
    width: int | None
    """Lanes now."""
    max_width: int | None


def accelerators(folder: Path) -> tuple[Accelerator, ...] | None:
    """Return the GPUs by address; None if the bus cannot be read."""
    if not folder.is_dir():
        return None
    return tuple(
        _accelerator(device)
        for device in sorted(folder.iterdir())
        if _read(device, "vendor") in _VENDORS
        and str(_read(device, "class")).startswith(_CLASSES)
    )


def _accelerator(device: Path) -> Accelerator:
    node = _whole(device, "numa_node")
    return Accelerator(
        address=device.name,
        vendor=_VENDORS[str(_read(device, "vendor"))],
        numa_node=None if node is None or node < 0 else node,  # -1: firmware is silent
        speed=_read(device, "current_link_speed"),
        max_speed=_read(device, "max_link_speed"),
        width=_whole(device, "current_link_width"),
        max_width=_whole(device, "max_link_width"),
    )


def _read(device: Path, name: str) -> str | None:
    try:
        return (device / name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _whole(device: Path, name: str) -> int | None:
    text = _read(device, name)
    return int(text) if text and text.removeprefix("-").isdigit() else None


def cpu_numbers(text: str) -> tuple[int, ...]:
    """Read a list of CPUs as the kernel writes it: ``0-3,8``."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
