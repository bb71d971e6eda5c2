from __future__ import annotations

import pytest

from partitioner.cost.device import DeviceProfile
from partitioner.cost.kernels import Kernel
from partitioner.cost.roofline import hop_s, kernels_s, message_s

PROFILE = DeviceProfile(
    name="round",
    memory_bytes=10**9,
    peak_flops={"float32": 1e12, "bfloat16": 4e12},
    memory_bandwidth=1e9,
    link_bandwidth=1e8,
    link_latency_s=1e-3,
    launch_s=1e-6,
    source="round numbers",
    efficiency={"matmul": 0.5},
    bandwidth_efficiency=0.5,
)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        # Arithmetic binds: 5e9 / (1e12 * 0.5).
        (Kernel(operator_class="matmul", flops=5 * 10**9, nbytes=8), 1e-2),
        # The same in a type that is four times as fast.
        (
            Kernel(operator_class="matmul", dtype="bfloat16", flops=5 * 10**9),
            2.5e-3,
        ),
        # Memory binds: 5e6 / (1e9 * 0.5).
        (Kernel(flops=1, nbytes=5 * 10**6), 1e-2),
        # Nothing binds but the launch.
        (Kernel(), 0.0),
    ],
)
def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic(kernel, expected):
    assert kernels_s(PROFILE, {kernel: 1}) == pytest.approx(expected + 1e-6)
    assert kernels_s(PROFILE, {kernel: 3}) == pytest.approx(3 * (expected + 1e-6))


def test_kernels_run_one_after_the_other():
    one, two = Kernel(nbytes=10**6), Kernel(nbytes=2 * 10**6)

    together = kernels_s(PROFILE, {one: 1, two: 1})

    assert together == kernels_s(PROFILE, {one: 1}) + kernels_s(PROFILE, {two: 1})
    assert kernels_s(PROFILE, {}) == 0


def test_a_hop_pays_latency_in_each_direction_that_is_used():
    assert message_s(PROFILE, 10**6) == pytest.approx(1e-3 + 1e-2)
    assert hop_s(PROFILE, 10**6, []) == message_s(PROFILE, 10**6)
    assert hop_s(PROFILE, 10**6, [10**5, 10**5]) == pytest.approx(
        message_s(PROFILE, 10**6) + message_s(PROFILE, 2 * 10**5)
    )
