from __future__ import annotations

import dataclasses

import pytest

from partitioner.assess.predict import predict
from partitioner.cost.inflight import in_flight
from partitioner.solve import Device, Tie, Value, score
from tests.solve.toys import chain

PROBLEM = dataclasses.replace(
    chain(
        (2.0, 4.0, 6.0),
        stages=2,
        micro_batches=3,
        saved=[10, 20, 40],
        static=[100, 200, 400],
        blocks=[0, 0, 1],
    ),
    values=(
        Value(producer=0, consumers=(1, 2), hop_s=0.5, wire_bytes=7),
        Value(producer=1, consumers=(2,), hop_s=0.25, wire_bytes=3),
    ),
    ties=(Tie(units=(0, 2), static_bytes=1000),),
)


def test_times_of_a_problem_worked_out_by_hand():
    first, second = score(PROBLEM, (0, 0, 1), (False, False, True)).stages
    assert (first.forward_s, first.backward_s, first.recompute_s) == (3.0, 3.0, 0.0)
    assert first.communication_s == second.communication_s == 0.75
    assert second.recompute_s == 3.0
    assert (first.time_s, second.time_s) == (6.75, 9.75)


def test_step_bottleneck_and_bubble():
    found = score(PROBLEM, (0, 0, 1), (False, False, True))
    assert found.step_s == 6.75 + 9.75 + 2 * 9.75
    assert found.bottleneck == 1
    assert found.bubble_share == pytest.approx(1 - 3 * 16.5 / (2 * 36.0))


def test_memory_of_a_problem_worked_out_by_hand():
    first, second = score(PROBLEM, (0, 0, 1), (True, True, False)).stages
    # Stage 0 holds two micro-batches; its block reads nothing from outside itself.
    assert first.static_bytes == 100 + 200 + 1000
    assert first.saved_bytes == 0
    assert first.recompute_peak_bytes == 30
    assert (first.received_bytes, first.wire_bytes, first.sent_bytes) == (0, 10, 10)
    # What it has sent waits, packed, for its gradient.
    assert first.sent_kept_bytes == 2 * 10
    assert first.memory_bytes == 1300 + 30 + 20 + 10
    # Stage 1 holds one: 40 saved, both values received twice, one buffer of them.
    assert second.memory_bytes == 1400 + 40 + 20 + 10


def test_a_recomputed_block_keeps_what_it_reads_from_outside():
    _, second = score(PROBLEM, (0, 0, 1), (False, False, True)).stages
    assert second.saved_bytes == 7 + 3
    assert second.recompute_peak_bytes == 40


def test_what_several_blocks_read_is_kept_once_if_all_are_recomputed():
    def read(checkpointing):
        problem = dataclasses.replace(PROBLEM, checkpointing=checkpointing)
        return score(problem, (0, 1, 1), (True, True, True)).stages[1].saved_bytes

    assert read("auto") == 7 + 7 + 3  # each block pays for itself
    assert read("all") == 7 + 3


def test_the_parts_of_a_block_on_two_stages_count_as_two_blocks():
    first, second = score(PROBLEM, (0, 1, 1), (True, True, False)).stages
    assert first.recompute_peak_bytes == 10
    assert second.recompute_peak_bytes == 20
    assert second.saved_bytes == 40 + 7  # block 0 reads the first value


def test_a_value_that_skips_a_stage_crosses_every_boundary():
    problem = dataclasses.replace(PROBLEM, stages=3, in_flight=(3, 2, 1))
    stages = score(problem, (0, 1, 2), (False,) * 3).stages
    assert [row.sent_bytes for row in stages] == [7, 10, 0]
    assert [row.communication_s for row in stages] == [0.5, 1.25, 0.75]


def test_equal_stages_have_the_bubble_of_gpipe():
    problem = chain((1.0,) * 4, stages=4, micro_batches=8)
    found = score(problem, (0, 1, 2, 3), (False,) * 4)
    assert found.bubble_share == pytest.approx(3 / (8 + 3))


def test_a_problem_without_work_has_no_bubble():
    problem = chain((0.0, 0.0), stages=2)
    assert score(problem, (0, 1), (False, False)).bubble_share == 0.0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("backward", [1.0, 2.0, 3.0])
def test_equal_chunks_take_what_deepspeed_s_dualpipev_takes(ranks, backward):
    stages = 2 * ranks
    problem = chain(
        (1.0,) * stages,
        stages=stages,
        micro_batches=2 * stages,
        schedule="dualpipev",
        in_flight=in_flight(stages, 2 * stages, "dualpipev"),
    )
    units = [
        dataclasses.replace(unit, forward_s=1.0, backward_s=backward)
        for unit in problem.units
    ]
    problem = dataclasses.replace(problem, units=tuple(units))
    stage_of = tuple(range(stages))
    found = score(problem, stage_of, (False,) * stages)
    simulated = predict(problem, stage_of, (False,) * stages, "dualpipev")
    assert 0 <= found.step_s - simulated.step_s <= 1.0
    assert len(found.ranks) == ranks


def test_unequal_devices_divide_work_but_not_communication():
    problem = dataclasses.replace(
        PROBLEM, devices=(Device(speed=2.0), Device(memory_limit_bytes=9))
    )
    first, second = score(problem, (0, 0, 1), (False, False, True)).stages
    assert first.time_s == 6.0 / 2.0 + 0.75
    assert second.time_s == 9.75
    assert problem.limits == (None, 9)


def test_at_a_far_boundary_the_other_price_counts_on_both_sides():
    values = (
        dataclasses.replace(PROBLEM.values[0], far_hop_s=4.0),
        PROBLEM.values[1],  # costs the same everywhere
    )
    problem = dataclasses.replace(
        PROBLEM, values=values, stages=3, in_flight=(3, 2, 1), far=(False, True)
    )
    stages = score(problem, (0, 1, 2), (False,) * 3).stages
    assert [row.communication_s for row in stages] == [0.5, 0.5 + 4.25, 4.25]
    near = dataclasses.replace(problem, far=(False, False))
    assert [
        row.communication_s for row in score(near, (0, 1, 2), (False,) * 3).stages
    ] == [
        0.5,
        1.25,
        0.75,
    ]


def test_through_shared_memory_both_ends_pay_once():
    problem = dataclasses.replace(
        PROBLEM, stages=3, in_flight=(1, 1, 1), transfer="ends"
    )
    stages = score(problem, (0, 1, 2), (False,) * 3).stages
    assert [row.communication_s for row in stages] == [0.5, 0.75, 0.75]


def test_backward_holds_the_largest_transient_and_what_is_reserved():
    units = tuple(
        dataclasses.replace(unit, transient_bytes=size)
        for unit, size in zip(PROBLEM.units, (5, 9, 0), strict=True)
    )
    problem = dataclasses.replace(PROBLEM, units=units, reserved_bytes=100)
    first, second = score(problem, (0, 0, 1), (False, False, False)).stages
    assert (first.transient_bytes, second.transient_bytes) == (9, 0)
    assert first.memory_bytes == 1300 + 2 * (30 + 10) + 10 + 100 + 9


def test_a_recomputed_block_comes_back_with_its_own_backward():
    units = tuple(
        dataclasses.replace(unit, beyond_bytes=size)
        for unit, size in zip(PROBLEM.units, (5, 9, 0), strict=True)
    )
    problem = dataclasses.replace(PROBLEM, units=units, reserved_bytes=38)
    first, second = score(problem, (0, 0, 1), (True, True, False)).stages
    assert first.recompute_peak_bytes == 10 + 20 + 9
    assert first.peak_bytes == 39  # more than is reserved
    assert second.peak_bytes == 38


def test_of_the_moments_before_and_in_the_tail_the_larger_counts():
    def peak(tail_transient, reserved):
        last = dataclasses.replace(
            PROBLEM.units[2], block=-1, tail=True, transient_bytes=tail_transient
        )
        units = (*PROBLEM.units[:2], last)
        problem = dataclasses.replace(PROBLEM, units=units, reserved_bytes=reserved)
        row = score(problem, (0, 1, 1), (False, False, False)).stages[1]
        assert row.saved_bytes == 20 + 40  # the tail's as well
        return row.peak_bytes

    assert peak(tail_transient=30, reserved=60) == 30
    assert peak(tail_transient=30, reserved=80) == 80 - 40  # its 40 are gone by then
    assert peak(tail_transient=0, reserved=0) == 0


def test_gradients_that_pass_take_the_place_of_what_is_freed():
    last = dataclasses.replace(PROBLEM.units[2], block=-1, tail=True, passing_bytes=7)
    units = (PROBLEM.units[0], dataclasses.replace(last, tail=False), last)
    problem = dataclasses.replace(PROBLEM, units=units, reserved_bytes=80)
    row = score(problem, (0, 1, 1), (False, False, False)).stages[1]
    assert row.peak_bytes == 80 - 40 + 7 + 7


def test_the_optimizer_s_step_counts_where_it_needs_more():
    units = tuple(
        dataclasses.replace(unit, step_bytes=size)
        for unit, size in zip(PROBLEM.units, (20, 30, 4), strict=True)
    )
    ties = (dataclasses.replace(PROBLEM.ties[0], step_bytes=50),)
    problem = dataclasses.replace(PROBLEM, units=units, ties=ties)
    first, second = score(problem, (0, 0, 1), (True, True, False)).stages
    # More than 50 of activations; the buffer of the wire is there all the time.
    assert first.memory_bytes == 1300 + 10 + 20 + 30 + 50
    assert second.step_bytes == 4 + 50
    assert second.memory_bytes == 1400 + 40 + 20 + 10  # less than activations
