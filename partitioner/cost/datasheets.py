"""The device profiles that come with the package, each with its datasheet.

The efficiencies of GPUs were measured on an H200 and are taken for the others too.
Figures were read a second time in November 2026, in pages that quote the datasheets:
V100 grokipedia.opelly.me/articles/nvidia-tesla-v100; A100, H100 and B200
glennklockwood.com/garden/processors/{A100,h100,B200}; H200 aiwiki.ai/wiki/nvidia_h200;
L40S mullet.se (product 355414); L4 grokipedia.com/page/NVIDIA_L4_vs_L40S and, for
float64, hmc-tech.com/gpu/nvidia-l4-vs-nvidia-l40; RTX 4090
waredb.com/processor/nvidia-geforce-rtx-4090. All agree but for the B200, of which
that page gives float64 as 40 and float32 as 80 TFLOP/s (at 1000 W): the lower figures
of NVIDIA's table for the HGX board are kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partitioner.cost.device import DeviceProfile, OperatorClass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PROFILES"]

_VECTOR_UNITS: Mapping[OperatorClass, float] = {
    "matmul": 0.65,
    "convolution": 0.65,
    "attention": 0.50,
    "other": 1.0,
}
"""Measured on one core of an EPYC server under torch 2.13."""


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
        kind="cpu",
        memory_bytes=_ram_bytes(),
        # Half types are emulated without AMX.
        peak_flops={"float32": 9.6e10, "float64": 4.8e10, "bfloat16": 1e10,
                    "float16": 1e10},
        memory_bandwidth=1.5e10,
        link_bandwidth=2e9,
        link_latency_s=1e-4,
        launch_s=5e-6,
        source="one AVX2 core at 3 GHz; memory is this machine's",
        efficiency=_VECTOR_UNITS,
        streams={},
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
        teraflops={"float64": 9.7, "float32": 19.5, "tfloat32": 156,
                   "float16": 312, "bfloat16": 312},
        memory_gb_s=1555,
        link_gb_s=300,
    ),
    _gpu(
        "a100-80g",
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf (80GB SXM)",
        memory_gb=80,
        teraflops={"float64": 9.7, "float32": 19.5, "tfloat32": 156,
                   "float16": 312, "bfloat16": 312},
        memory_gb_s=2039,
        link_gb_s=300,
    ),
    _gpu(
        "h100-80g",
        "https://www.nvidia.com/en-us/data-center/h100/ (SXM; half of the figures "
        "with sparsity)",
        memory_gb=80,
        teraflops={"float64": 34, "float32": 67, "tfloat32": 494,
                   "float16": 989, "bfloat16": 989},
        memory_gb_s=3350,
        link_gb_s=450,
    ),
    _gpu(
        "h200",
        "https://www.nvidia.com/en-us/data-center/h200/ (SXM; half of the figures "
        "with sparsity)",
        memory_gb=141,
        teraflops={"float64": 34, "float32": 67, "tfloat32": 494,
                   "float16": 989, "bfloat16": 989},
        memory_gb_s=4800,
        link_gb_s=450,
    ),
    _gpu(
        "b200",
        "https://www.nvidia.com/en-us/data-center/hgx/ (HGX B200, one of eight)",
        memory_gb=180,
        teraflops={"float64": 37, "float32": 75, "tfloat32": 1100,
                   "float16": 2250, "bfloat16": 2250},
        memory_gb_s=8000,
        link_gb_s=900,
    ),
    _gpu(
        "l40s",
        "https://www.nvidia.com/en-us/data-center/l40s/ (PCIe Gen4 x16)",
        memory_gb=48,
        teraflops={"float64": 1.4, "float32": 91.6, "tfloat32": 183,
                   "float16": 362, "bfloat16": 362},
        memory_gb_s=864,
        link_gb_s=32,
    ),
    _gpu(
        "l4",
        "https://www.nvidia.com/en-us/data-center/l4/ (PCIe Gen4 x16; half of the "
        "figures with sparsity)",
        memory_gb=24,
        teraflops={"float64": 0.5, "float32": 30.3, "tfloat32": 60,
                   "float16": 121, "bfloat16": 121},
        memory_gb_s=300,
        link_gb_s=32,
    ),
    _gpu(
        "rtx-4090",
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
        "nvidia-ada-gpu-architecture.pdf (FP32 accumulate; PCIe Gen4 x16)",
        memory_gb=24,
        teraflops={"float64": 1.3, "float32": 82.6, "tfloat32": 82.6,
                   "float16": 165.2, "bfloat16": 165.2},
        memory_gb_s=1008,
        link_gb_s=32,
    ),
)  # fmt: skip

PROFILES: Mapping[str, DeviceProfile] = {profile.name: profile for profile in _TABLE}
