"""Real engines hold what their plan says: by kind, in flight, and at the peak."""

from __future__ import annotations

import functools

import pytest

from tests.distributed.launch import launch
from tests.distributed.memory_cases import CASES, Found, run

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

PADDING = 4 * 64
"""Bytes up to which flat tensors of an engine are longer than what they hold."""

KINDS = ["fp32", "bf16", "fp32-zero", "bf16-zero"]
PEAKS = [name for name, case in CASES.items() if case.peak]


@functools.cache
def trained(world: int) -> dict[str, list[Found]]:
    names = list(CASES) if world == 2 else KINDS
    ranks = launch(world, run, names, world == 2, timeout_s=280)
    return {name: [rank[i] for rank in ranks] for i, name in enumerate(names)}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("world", [2, 4], ids=["1 replica", "2 replicas"])
def test_weights_gradients_masters_and_states_are_those_of_the_plan(world, name):
    for found in trained(world)[name]:
        assert found.kinds.keys() == found.predicted_kinds.keys()
        for kind, expected in found.predicted_kinds.items():
            assert abs(found.kinds[kind] - expected) <= PADDING, kind


def test_every_engine_was_met():
    engines = {found[0].optimizer for found in trained(2).values()}
    assert engines == {"AdamW", "BF16_Optimizer", "DeepSpeedZeroOptimizer"}


def test_replicas_share_states_under_zero():
    alone, shared = (trained(world)["fp32-zero"][0].kinds for world in (2, 4))
    assert shared["states"] == pytest.approx(alone["states"] / 2, abs=PADDING)
    assert shared["gradients"] == alone["gradients"]


def test_what_is_offloaded_is_not_in_the_plan():
    for found in trained(2)["bf16-offload"]:
        assert found.offloaded
        assert found.predicted_kinds["masters"] == 0
        assert found.predicted_kinds["states"] == 0
        for kind in ("weights", "gradients"):
            difference = found.kinds[kind] - found.predicted_kinds[kind]
            assert abs(difference) <= PADDING, kind


@pytest.mark.parametrize("name", PEAKS)
def test_the_peak_is_that_of_the_plan(name):
    for found in trained(2)[name]:
        assert 0.97 <= found.predicted_bytes / found.peak_bytes <= 1.05


def test_each_micro_batch_in_flight_keeps_what_it_sent():
    first, _ = trained(2)["fp32"]
    assert first.sent_kept == 2  # of the three of a step
