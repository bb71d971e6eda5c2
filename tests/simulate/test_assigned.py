from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.simulate import price_assignment, simulate
from partitioner.simulate.from_deepspeed import one_f_one_b
from partitioner.solve import Device, Value, score
from tests.solve.toys import chain


def test_stages_cost_what_their_units_cost():
    problem = chain(
        (2.0, 4.0, 6.0, 8.0),
        saved=[10, 20, 30, 40],
        trainable=[True, True, False, True],
        wire_bytes=3,
    )
    price = price_assignment(problem, (0, 0, 1, 1), (False, False, True, False))

    first, second = price.chunks
    assert (first.forward_s, first.input_gradient_s) == (3.0, 1.5)
    assert first.weight_gradient_s == 1.5
    # Only the unit with weights of its own has a gradient for them.
    assert (second.forward_s, second.weight_gradient_s) == (7.0, 2.0)
    assert (second.input_gradient_s, second.recompute_s) == (5.0, 3.0)
    rows = score(problem, (0, 0, 1, 1), (False, False, True, False)).stages
    assert first.in_flight_bytes * 2 == rows[0].in_flight_bytes
    assert second.in_flight_bytes == rows[1].in_flight_bytes


def test_a_late_host_makes_all_of_a_stage_longer():
    plain = chain((2.0, 4.0, 6.0, 8.0), trainable=[True, True, False, True])
    first, *others = plain.units
    problem = replace(plain, units=(replace(first, host_s=12.0), *others))
    stage_of, again = (0, 0, 1, 1), (False, True, False, False)
    late, same = price_assignment(problem, stage_of, again).chunks
    usual, other = price_assignment(plain, stage_of, again).chunks

    assert same == other
    for name in (
        "forward_s", "input_gradient_s", "weight_gradient_s", "recompute_s",
    ):  # fmt: skip
        assert getattr(late, name) == pytest.approx(1.5 * getattr(usual, name))


def test_a_value_costs_every_boundary_that_it_crosses_each_way():
    problem = replace(
        chain((1.0, 1.0, 1.0), stages=3),
        values=(
            Value(
                producer=0,
                consumers=(1, 2),
                hop_s=5.0,
                wire_bytes=1,
                gradient_hop_s=2.0,
            ),
            Value(producer=1, consumers=(2,), hop_s=0.5, wire_bytes=1),
        ),
    )
    price = price_assignment(problem, (0, 1, 2), (False,) * 3)

    assert price.activation_s == (3.0, 3.5)
    assert price.gradient_s == (2.0, 2.0)


def test_a_far_boundary_has_its_own_price_each_way():
    value = Value(
        producer=0,
        consumers=(1, 2),
        hop_s=5.0,
        wire_bytes=1,
        gradient_hop_s=2.0,
        far_hop_s=50.0,
        far_gradient_hop_s=20.0,
    )
    local = Value(producer=1, consumers=(2,), hop_s=0.5, wire_bytes=1)
    problem = replace(
        chain((1.0, 1.0, 1.0), stages=3), values=(value, local), far=(False, True)
    )
    price = price_assignment(problem, (0, 1, 2), (False,) * 3)

    assert price.activation_s == (3.0, 30.5)
    assert price.gradient_s == (2.0, 20.0)


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_equal_stages_without_messages_take_the_time_of_the_formula(micro_batches):
    problem = chain((3.0, 3.0), micro_batches=micro_batches)
    stage_of, recomputed = (0, 1), (False, True)
    price = price_assignment(problem, stage_of, (False, False))

    found = simulate(one_f_one_b(2, micro_batches), price)

    assert found.step_s == score(problem, stage_of, (False, False)).step_s
    again = simulate(
        one_f_one_b(2, micro_batches), price_assignment(problem, stage_of, recomputed)
    )
    assert again.step_s > found.step_s


def test_a_slow_device_takes_longer_for_all_passes_and_not_for_messages():
    problem = replace(
        chain((2.0, 2.0), hops=[1.0]), devices=(Device(), Device(speed=0.5))
    )
    price = price_assignment(problem, (0, 1), (False, True))

    first, second = price.chunks
    assert (first.forward_s, second.forward_s) == (1.0, 2.0)
    assert first.input_gradient_s == first.weight_gradient_s == 0.5
    assert second.input_gradient_s == second.weight_gradient_s == 1.0
    assert (second.recompute_s, price.activation_s) == (2.0, (1.0,))
