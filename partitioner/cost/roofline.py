"""Seconds of kernels and messages on a device profile.

A kernel takes the longer of its arithmetic and its memory traffic (Williams, Waterman
and Patterson, Roofline, CACM 52(4), 2009), plus a fixed launch time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from partitioner.cost.kernels import Kernel
    from partitioner.cost.profiles import DeviceProfile

__all__ = ["hop_s", "kernels_s", "message_s"]


def kernels_s(profile: DeviceProfile, kernels: Mapping[Kernel, int]) -> float:
    """Return the seconds of kernels that run one after the other.

    Args:
        profile: The device.
        kernels: Each distinct kernel and how often it runs.

    Returns:
        ``sum(count * (max(flops / reachable, bytes / bandwidth) / share + launch))``;
        shares hold on a GPU.
    """
    return sum(count * _kernel_s(profile, one) for one, count in kernels.items())


def _kernel_s(profile: DeviceProfile, kernel: Kernel) -> float:
    reachable = profile.flops_per_s(kernel.dtype, kernel.operator_class)
    arithmetic_s = kernel.flops / reachable
    traffic_s = kernel.nbytes / profile.bytes_per_s(kernel.operator_class)
    share = kernel.share if profile.kind == "gpu" else 1.0
    return max(arithmetic_s, traffic_s) / share + profile.launch_s


def message_s(profile: DeviceProfile, nbytes: int) -> float:
    """Return the seconds of one message of ``nbytes`` to a neighbouring stage."""
    return profile.link_latency_s + nbytes / profile.link_bandwidth


def hop_s(profile: DeviceProfile, nbytes: int, gradient_bytes: Iterable[int]) -> float:
    """Return the seconds a value needs to cross one stage boundary, both ways.

    Args:
        profile: The device whose link is used.
        nbytes: Bytes sent forwards.
        gradient_bytes: Sizes of the parts that get a gradient; none if empty.
    """
    back = sum(gradient_bytes)
    return message_s(profile, nbytes) + (message_s(profile, back) if back else 0.0)
