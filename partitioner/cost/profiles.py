"""Device profiles: what a roofline needs to know about an accelerator."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from partitioner.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROFILES", "DeviceProfile", "OperatorClass", "resolve"]

OperatorClass = Literal["matmul", "convolution", "attention", "other"]
"""What an operator's reachable share of the peak depends on."""

_TENSOR_CORES: Mapping[OperatorClass, float] = {
    "matmul": 0.75,
    "convolution": 0.55,
    "attention": 0.50,
    "other": 1.0,
}
"""Typical shares of the dense peak that library kernels reach on large shapes."""

_VECTOR_UNITS: Mapping[OperatorClass, float] = {
    "matmul": 0.70,
    "convolution": 0.45,
    "attention": 0.40,
    "other": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One accelerator as a roofline sees it; public, so users can describe their own.

    Args:
        name: Shown in reports.
        memory_bytes: What a stage may use.
        peak_flops: Dense peak in FLOP/s by dtype name (``"bfloat16"``); one
            multiply-add is two FLOPs.
        memory_bandwidth: Bytes per second to and from the device's memory.
        link_bandwidth: Bytes per second to a neighbour, one direction.
        link_latency_s: Seconds before the first byte of a message arrives.
        launch_s: Fixed cost of one kernel in seconds.
        source: Where the figures come from.
        efficiency: Share of ``peak_flops`` an operator class reaches.
        bandwidth_efficiency: Share of ``memory_bandwidth`` that kernels reach.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    link_latency_s: float
    launch_s: float
    source: str
    efficiency: Mapping[OperatorClass, float] = field(
        default_factory=lambda: dict(_TENSOR_CORES)
    )
    bandwidth_efficiency: float = 0.85

    def __post_init__(self) -> None:
        """Refuse figures a roofline would divide by.

        Raises:
            OptionError: A rate is not positive, or ``peak_flops`` lacks float32.
        """
        if "float32" not in self.peak_flops:
            raise OptionError(
                f"profile {self.name!r}: peak_flops has no entry 'float32'",
                hint="add it: other dtypes fall back to it",
            )
        rates = {
            "memory_bytes": self.memory_bytes,
            "memory_bandwidth": self.memory_bandwidth,
            "link_bandwidth": self.link_bandwidth,
            **{f"peak_flops[{name!r}]": x for name, x in self.peak_flops.items()},
            **{f"efficiency[{name!r}]": x for name, x in self.efficiency.items()},
        }
        for name, value in rates.items():
            if not value > 0:
                raise OptionError(
                    f"profile {self.name!r}: {name} is {value}, must be above 0"
                )

    def flops_per_s(self, dtype: str, operator_class: OperatorClass) -> float:
        """Return the reachable FLOP/s; unknown dtypes compute at float32's rate."""
        peak = self.peak_flops.get(dtype, self.peak_flops["float32"])
        return peak * self.efficiency.get(operator_class, 1.0)

    @property
    def bytes_per_s(self) -> float:
        """Reachable bytes per second to and from memory."""
        return self.memory_bandwidth * self.bandwidth_efficiency


def _ram_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 16 * 2**30


_GB = 10**9
# Decimal gigabytes of the datasheet: what the driver reports is some percent more,
# and the CUDA context, NCCL's buffers and fragmentation live in the difference.
# Dense peaks, never the doubled "with sparsity" ones. Float32 is the rate without
# TF32, torch's default for matrix products. Link: half of the bidirectional figure.


def _gpu(
    name: str,
    source: str,
    *,
    memory_gb: int,
    teraflops: Mapping[str, float],
    memory_gb_s: float,
    link_gb_s: float,
) -> DeviceProfile:
    return DeviceProfile(
        name=name,
        memory_bytes=memory_gb * _GB,
        peak_flops={dtype: rate * 1e12 for dtype, rate in teraflops.items()},
        memory_bandwidth=memory_gb_s * 1e9,
        link_bandwidth=link_gb_s * 1e9,
        link_latency_s=1e-5,
        launch_s=3e-6,
        source=source,
    )


_TABLE = (
    DeviceProfile(
        # One core of a common x86 server with AVX2 (16 multiply-adds a cycle at
        # 3 GHz); stages talk through gloo over the loopback device.
        name="cpu",
        memory_bytes=_ram_bytes(),
        peak_flops={"float32": 9.6e10, "float64": 4.8e10, "bfloat16": 4.8e10,
                    "float16": 4.8e10},
        memory_bandwidth=1.5e10,
        link_bandwidth=2e9,
        link_latency_s=1e-4,
        launch_s=5e-6,
        source="one AVX2 core at 3 GHz; memory is this machine's",
        efficiency=_VECTOR_UNITS,
    ),
    _gpu(
        "v100-32g",
        "https://images.nvidia.com/content/technologies/volta/pdf/"
        "volta-v100-datasheet-update-us-1165301-r5.pdf (SXM2)",
        memory_gb=32,
        # No bfloat16 tensor cores: computed at float32's rate.
        teraflops={"float64": 7.8, "float32": 15.7, "float16": 125, "bfloat16": 15.7},
        memory_gb_s=900,
        link_gb_s=150,
    ),
    _gpu(
        "a100-40g",
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (40GB SXM)",
        memory_gb=40,
        teraflops={"float64": 9.7, "float32": 19.5, "float16": 312, "bfloat16": 312},
        memory_gb_s=1555,
        link_gb_s=300,
    ),
    _gpu(
        "a100-80g",
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (80GB SXM)",
        memory_gb=80,
        teraflops={"float64": 9.7, "float32": 19.5, "float16": 312, "bfloat16": 312},
        memory_gb_s=2039,
        link_gb_s=300,
    ),
    _gpu(
        "h100-80g",
        "https://www.nvidia.com/en-us/data-center/h100/ (SXM; half of the figures "
        "with sparsity)",
        memory_gb=80,
        teraflops={"float64": 34, "float32": 67, "float16": 989, "bfloat16": 989},
        memory_gb_s=3350,
        link_gb_s=450,
    ),
    _gpu(
        "h200",
        "https://www.nvidia.com/en-us/data-center/h200/ (SXM; half of the figures "
        "with sparsity)",
        memory_gb=141,
        teraflops={"float64": 34, "float32": 67, "float16": 989, "bfloat16": 989},
        memory_gb_s=4800,
        link_gb_s=450,
    ),
    _gpu(
        "b200",
        "https://www.nvidia.com/en-us/data-center/hgx/ (HGX B200, one of eight)",
        memory_gb=180,
        teraflops={"float64": 37, "float32": 75, "float16": 2250, "bfloat16": 2250},
        memory_gb_s=8000,
        link_gb_s=900,
    ),
    _gpu(
        "l40s",
        "https://www.nvidia.com/en-us/data-center/l40s/ (PCIe Gen4 x16)",
        memory_gb=48,
        teraflops={"float64": 1.4, "float32": 91.6, "float16": 362, "bfloat16": 362},
        memory_gb_s=864,
        link_gb_s=32,
    ),
    _gpu(
        "l4",
        "https://www.nvidia.com/en-us/data-center/l4/ (PCIe Gen4 x16; half of the "
        "figures with sparsity)",
        memory_gb=24,
        teraflops={"float64": 0.5, "float32": 30.3, "float16": 121, "bfloat16": 121},
        memory_gb_s=300,
        link_gb_s=32,
    ),
    _gpu(
        "rtx-4090",
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
        "nvidia-ada-gpu-architecture.pdf (FP32 accumulate; PCIe Gen4 x16)",
        memory_gb=24,
        teraflops={"float64": 1.3, "float32": 82.6, "float16": 165.2,
                   "bfloat16": 165.2},
        memory_gb_s=1008,
        link_gb_s=32,
    ),
)  # fmt: skip

PROFILES: Mapping[str, DeviceProfile] = {profile.name: profile for profile in _TABLE}

_ALIASES = {
    "a100": "a100-80g",
    "h100": "h100-80g",
    "v100": "v100-32g",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
}

# First match wins: (substrings of torch.cuda.get_device_name, profile). Memory sizes
# tell the variants of one chip apart where the name carries them.
_DEVICE_NAMES = (
    (("A100", "40GB"), "a100-40g"),
    (("A100",), "a100-80g"),
    (("H200",), "h200"),
    (("H100",), "h100-80g"),
    (("B200",), "b200"),
    (("L40S",), "l40s"),
    (("L4",), "l4"),
    (("RTX 4090",), "rtx-4090"),
    (("V100",), "v100-32g"),
)


def resolve(device: str | DeviceProfile | None = None) -> DeviceProfile:
    """Find the profile to price with.

    Args:
        device: A profile, its name or alias (``"h100"``, ``"a100-80g"``; case and
            separators do not matter), ``"cuda"`` or None. None: the accelerator
            that is present, else the CPU.

    Returns:
        The profile.

    Raises:
        OptionError: No profile has that name, or the accelerator that is present is
            not in the table.
    """
    if isinstance(device, DeviceProfile):
        return device
    if device is None or device.lower() == "cuda":
        return _present(required=device is not None)
    wanted = device.lower().replace("_", "-").replace(" ", "-").removesuffix("b")
    wanted = _ALIASES.get(wanted, wanted)
    # "b" is cut from "80gb", not from a name that ends in it.
    found = PROFILES.get(wanted) or PROFILES.get(device.lower())
    if found is None:
        raise OptionError(
            f"device {device!r} is not a known profile",
            hint=f"choose from {', '.join(PROFILES)}, or pass a DeviceProfile",
        )
    return found


def _present(*, required: bool) -> DeviceProfile:
    if not torch.cuda.is_available():
        if required:
            raise OptionError(
                "device 'cuda' was asked for, but torch sees no CUDA device",
                hint=f"name the target instead: {', '.join(PROFILES)}",
            )
        return PROFILES["cpu"]
    name = torch.cuda.get_device_name()
    for parts, profile in _DEVICE_NAMES:
        if all(part in name for part in parts):
            return PROFILES[profile]
    raise OptionError(
        f"no profile for the accelerator that is present, {name!r}",
        hint=f"choose from {', '.join(PROFILES)}, or pass a DeviceProfile",
    )
