"""What this machine says of itself: Linux's own files, and the environment.

Nothing here is guessed. What cannot be read (a container hides it, another system has
no such file) is None, and its name is among ``Machine.unknown``.
"""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partitioner.doctor.pci import Accelerator, accelerators, cpu_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VARIABLES", "Machine", "read_machine"]

VARIABLES = (
    "CUDA_",
    "DEEPSPEED_",
    "DS_",
    "GLOO_",
    "LOCAL_",
    "MASTER_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "RANK",
    "TORCH_",
    "WORLD_SIZE",
)
"""How the names of the variables begin that matter; no others are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of one machine; None: could not be read."""

    environment: Mapping[str, str]
    """Variables that begin like ``VARIABLES``."""
    cores: tuple[int, ...] | None
    """CPUs that this process may run on."""
    node_cores: Mapping[int, tuple[int, ...]] | None
    """CPUs by NUMA node."""
    accelerators: tuple[Accelerator, ...] | None
    """GPUs on the PCI bus; empty: there is none, or a container hides them."""
    interfaces: tuple[str, ...] | None
    """Network interfaces."""
    infiniband: tuple[str, ...] | None
    """InfiniBand and RoCE devices."""
    shared_memory_bytes: int | None
    """Size of /dev/shm."""
    locked_memory_bytes: int | None
    """Limit of locked memory; -1: no limit."""
    governor: str | None
    """How the first CPU's clock is set."""
    numa_balancing: bool | None
    """Whether the kernel moves memory between NUMA nodes."""
    compiler: str | None
    """Path of nvcc, None: not found."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of what could not be read."""
        names = (field.name for field in fields(self) if field.name != "compiler")
        return tuple(name for name in names if getattr(self, name) is None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, with what is unknown."""
        facts = asdict(self)
        nodes = facts.pop("node_cores")
        facts["node_cores"] = nodes and {str(k): list(v) for k, v in nodes.items()}
        return {**facts, "unknown": list(self.unknown)}


def read_machine(
    root: str | Path = "/", environment: Mapping[str, str] | None = None
) -> Machine:
    """Read the facts of this machine.

    Args:
        root: Where the system's files are.
        environment: The variables; this process's own by default.
    """
    top = Path(root)
    variables = os.environ if environment is None else environment
    return Machine(
        environment={
            name: value
            for name, value in sorted(variables.items())
            if name.startswith(VARIABLES)
        },
        cores=_own_cores(),
        node_cores=_node_cores(top / "sys/devices/system/node"),
        accelerators=accelerators(top / "sys/bus/pci/devices"),
        interfaces=_names(top / "sys/class/net"),
        infiniband=_names(top / "sys/class/infiniband", without=top / "sys/class"),
        shared_memory_bytes=_size(top / "dev/shm"),
        locked_memory_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        governor=_text(top / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        numa_balancing=_flag(top / "proc/sys/kernel/numa_balancing"),
        compiler=_compiler(variables),
    )


def _own_cores() -> tuple[int, ...] | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    return tuple(sorted(os.sched_getaffinity(0)))


def _node_cores(folder: Path) -> dict[int, tuple[int, ...]] | None:
    found = {}
    for node in sorted(folder.glob("node[0-9]*")):
        text = _text(node / "cpulist")
        if text is not None:
            found[int(node.name.removeprefix("node"))] = cpu_numbers(text)
    return found or None


def _names(folder: Path, *, without: Path | None = None) -> tuple[str, ...] | None:
    """Return what a folder lists; nothing if only the folder ``without`` is there."""
    if not folder.is_dir():
        return () if without and without.is_dir() else None
    return tuple(sorted(entry.name for entry in folder.iterdir()))


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _flag(path: Path) -> bool | None:
    text = _text(path)
    return None if text is None else text != "0"


def _compiler(variables: Mapping[str, str]) -> str | None:
    """Find nvcc where torch looks for it: CUDA_HOME, then the path."""
    home = variables.get("CUDA_HOME") or variables.get("CUDA_PATH")
    if home and (Path(home) / "bin/nvcc").exists():
        return str(Path(home) / "bin/nvcc")
    return shutil.which("nvcc", path=variables.get("PATH"))
