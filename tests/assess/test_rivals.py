from __future__ import annotations

from itertools import combinations

import pytest
from deepspeed.runtime.utils import partition_balanced
from hypothesis import given
from hypothesis import strategies as st

from partitioner.assess.layers import Layer
from partitioner.assess.rivals import RIVALS, stages_of_layers


def layer(*, repeated=False, parameters=0, flops=0) -> Layer:
    return Layer(units=(), repeated=repeated, parameters=parameters, flops=flops)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_are_in_order_and_within_range(name, stages):
    layers = [layer(repeated=i % 2 == 0, parameters=i, flops=i * i) for i in range(9)]

    found = stages_of_layers(layers, stages, RIVALS[name])

    assert found == sorted(found)
    assert set(found) <= set(range(stages))
    assert len(found) == 9


def test_uniform_gives_every_stage_as_many_layers():
    layers = [layer(parameters=10**i) for i in range(6)]

    assert stages_of_layers(layers, 3, RIVALS["DeepSpeed uniform"]) == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def test_parameters_is_deepspeeds_own_split():
    sizes = [40, 1, 9, 9, 9, 9, 9, 30]
    found = stages_of_layers(
        [layer(parameters=size) for size in sizes], 3, RIVALS["DeepSpeed parameters"]
    )

    bounds = partition_balanced(sizes, 3)
    for stage in range(3):
        assert found[bounds[stage] : bounds[stage + 1]] == [stage] * (
            bounds[stage + 1] - bounds[stage]
        )


@given(st.lists(st.integers(0, 50), min_size=3, max_size=8), st.integers(2, 3))
def test_equal_flops_has_the_smallest_largest_stage(flops, stages):
    layers = [layer(flops=number) for number in flops]

    found = stages_of_layers(layers, stages, RIVALS["equal FLOPs"])

    loads = [
        sum(f for f, s in zip(flops, found, strict=True) if s == stage)
        for stage in range(stages)
    ]
    best = min(
        max(sum(flops[a:b]) for a, b in zip((0, *cuts), (*cuts, None), strict=True))
        for cuts in combinations(range(1, len(flops)), stages - 1)
    )
    assert max(loads) == best


def test_equal_blocks_ignores_what_is_around_them():
    ends = [layer(parameters=99)] * 3
    blocks = [layer(repeated=True)] * 5

    assert stages_of_layers([*ends, *blocks, *ends], 2, RIVALS["equal blocks"]) == [
        *[0] * 3,
        *[0] * 3,
        *[1] * 2,
        *[1] * 3,
    ]


@pytest.mark.parametrize("name", RIVALS)
def test_fewer_layers_than_stages_leave_stages_empty(name):
    found = stages_of_layers([layer(flops=1)] * 2, 4, RIVALS[name])

    assert len(set(found)) <= 2
