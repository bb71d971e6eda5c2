"""Make a DeviceProfile of the machine at hand by timing a few typical kernels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from partitioner.cost.device import DeviceProfile, OperatorClass
from partitioner.cost.kernels import dtype_name
from partitioner.cost.measure.store import device_here, device_name
from partitioner.cost.measure.timing import Call, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["machine_profile"]

_SIDE = {"cuda": 8192, "cpu": 1024}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LINK_BANDWIDTH = 2.5e10
_LINK_LATENCY_S = 1e-5
_SHORTEST_S = 1e-8
_LINK = "link: PCIe 4.0 x16 assumed, not measured"


def machine_profile(device: str | torch.device | None = None) -> DeviceProfile:
    """Time products, attention, a convolution, a sum and a launch.

    Args:
        device: ``cuda`` or ``cpu``; None: the GPU that is present, else the CPU.

    Returns:
        A profile whose peaks are what large products reach, and whose efficiencies
        are relative to those. Links are not measured: ``source`` says so.
    """
    place = device_here(device)
    bench = _Bench(place)
    on_gpu = place.type == "cuda"
    usual = torch.bfloat16 if on_gpu else torch.float32
    reached = {
        dtype: bench.product(dtype) for dtype in (_DTYPES if on_gpu else [usual])
    }
    efficiency: dict[OperatorClass, float] = {
        "matmul": 1.0,
        "attention": bench.attention(usual) / reached[usual],
        "convolution": bench.convolution(usual) / reached[usual],
        "other": 1.0,
    }
    return DeviceProfile(
        name=device_name(place),
        kind="gpu" if on_gpu else "cpu",
        memory_bytes=_memory_bytes(place),
        peak_flops={dtype_name(dtype): rate for dtype, rate in reached.items()},
        memory_bandwidth=bench.bandwidth(),
        bandwidth_efficiency=1.0,
        link_bandwidth=_LINK_BANDWIDTH,
        link_latency_s=_LINK_LATENCY_S,
        launch_s=bench.launch_s(),
        source=f"measured with torch {torch.__version__}; {_LINK}",
        efficiency=efficiency,
    )


class _Bench:
    """Rates of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._timer = Timer(device)
        self._side = _SIDE[device.type]

    def product(self, dtype: torch.dtype) -> float:
        """Return the FLOP/s of a large square product."""
        a, b = self._random(dtype, self._side, 2, self._side).unbind(1)
        flops: int = 2 * self._side**3
        return flops / self._seconds(lambda: a @ b)

    def attention(self, dtype: torch.dtype) -> float:
        """Return the FLOP/s of fused attention of width 64, nothing masked."""
        length, heads = self._side // 4, 16
        q, k, v = self._random(dtype, 3, 1, heads, length, 64)
        flops = 4 * heads * length**2 * 64
        attend = F.scaled_dot_product_attention
        return flops / self._seconds(lambda: attend(q, k, v))

    def convolution(self, dtype: torch.dtype) -> float:
        """Return the FLOP/s of a 3x3 convolution of 256 channels."""
        side, samples = 28, self._side // 64
        images = self._random(dtype, samples, 256, side, side)
        kernel = self._random(dtype, 256, 256, 3, 3)
        flops: int = 2 * samples * side**2 * 256**2 * 9
        return flops / self._seconds(lambda: F.conv2d(images, kernel, padding=1))

    def bandwidth(self) -> float:
        """Return the bytes per second that a sum of two large tensors moves."""
        a, b = self._random(torch.float32, 2, self._side**2)
        moved: int = 3 * a.nbytes
        return moved / self._seconds(lambda: a + b)

    def launch_s(self) -> float:
        """Return the seconds of a kernel with next to nothing to do."""
        one = self._random(torch.float32, 1)
        return self._seconds(lambda: one + 1)

    def _random(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device).to(dtype)

    def _seconds(self, run: Callable[[], Tensor]) -> float:
        call = Call(run=lambda _: run(), inputs=lambda: None)
        return max(self._timer.time(call, alone=True).forward_s, _SHORTEST_S)


def _memory_bytes(device: torch.device) -> int:
    """Return what the driver says is there in all, or the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
