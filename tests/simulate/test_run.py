from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import PartitionerError
from partitioner.simulate import (
    Compute,
    Exchange,
    PipelinePrice,
    Schedule,
    Transfer,
    interleaved,
    simulate,
)
from partitioner.simulate.from_deepspeed import dualpipev, one_f_one_b
from tests.simulate.pipelines import equal, priced_schedules, prices

MESSAGES = ("activation", "gradient")
LAST_PASSES = ("backward", "weight_gradient")


def ends_by_kind(found):
    """(kind, chunk, micro-batch) → (start, end) of passes."""
    return {
        (event.kind, event.chunk, event.micro_batch): (event.start_s, event.end_s)
        for event in found.events
        if event.kind not in MESSAGES
    }


@given(priced_schedules())
def test_no_pass_starts_before_what_it_reads_has_arrived(case):
    schedule, price = case
    ran = ends_by_kind(simulate(schedule, price))
    for (kind, chunk, number), (start_s, _) in ran.items():
        if kind == "forward":
            before = ("forward", chunk - 1, number) if chunk else None
            hop_s = price.activation_s[chunk - 1] if chunk else 0.0
        elif kind == "weight_gradient":
            before, hop_s = ("input_gradient", chunk, number), 0.0
        else:
            assert ran["forward", chunk, number][1] <= start_s
            last = chunk == schedule.chunks - 1
            before = None if last else (kind, chunk + 1, number)
            hop_s = 0.0 if last else price.gradient_s[chunk]
        if before is None:
            continue
        same = schedule.rank_of[before[1]] == schedule.rank_of[chunk]
        assert ran[before][1] + (0.0 if same else hop_s) <= start_s


@given(priced_schedules())
def test_a_rank_does_one_thing_at_a_time_in_its_own_order(case):
    schedule, price = case
    found = simulate(schedule, price)
    for rank, steps in enumerate(schedule.lists):
        passes = [e for e in found.events if e.rank == rank and e.kind not in MESSAGES]
        listed = [step for step in steps if isinstance(step, Compute)]
        assert [(e.kind, e.chunk, e.micro_batch) for e in passes] == [
            (step.kind, step.chunk, step.micro_batch) for step in listed
        ]
        for earlier, later in itertools.pairwise(passes):
            assert earlier.end_s <= later.start_s


@given(priced_schedules())
def test_no_step_is_shorter_than_its_work_or_than_one_micro_batch_alone(case):
    schedule, price = case
    found = simulate(schedule, price)
    work_s = [0.0] * schedule.ranks
    for chunk, rank in zip(price.chunks, schedule.rank_of, strict=True):
        once_s = chunk.forward_s + chunk.recompute_s
        once_s += chunk.input_gradient_s + chunk.weight_gradient_s
        work_s[rank] += schedule.micro_batches * once_s
    assert [use.compute_s for use in found.ranks] == work_s
    alone_s = sum(
        c.forward_s + c.recompute_s + c.input_gradient_s for c in price.chunks
    )
    alone_s += sum(
        price.activation_s[chunk] + price.gradient_s[chunk]
        for chunk in range(schedule.chunks - 1)
        if schedule.rank_of[chunk] != schedule.rank_of[chunk + 1]
    )
    assert found.step_s >= max(*work_s, alone_s)
    assert found.period_s <= found.step_s
    assert all(0 <= share <= 1 for share in found.bubble_shares)


@given(priced_schedules(), st.data())
def test_a_step_never_gets_shorter_when_something_takes_longer(case, data):
    schedule, price = case
    more = data.draw(prices(schedule.chunks))
    longer = PipelinePrice(
        chunks=tuple(
            replace(
                chunk,
                forward_s=chunk.forward_s + extra.forward_s,
                input_gradient_s=chunk.input_gradient_s + extra.input_gradient_s,
                weight_gradient_s=chunk.weight_gradient_s + extra.weight_gradient_s,
                recompute_s=chunk.recompute_s + extra.recompute_s,
            )
            for chunk, extra in zip(price.chunks, more.chunks, strict=True)
        ),
        activation_s=tuple(
            map(sum, zip(price.activation_s, more.activation_s, strict=True))
        ),
        gradient_s=tuple(map(sum, zip(price.gradient_s, more.gradient_s, strict=True))),
    )
    assert simulate(schedule, longer).step_s >= simulate(schedule, price).step_s


@given(priced_schedules())
def test_activations_are_held_from_forward_to_last_backward_and_all_are_freed(case):
    schedule, price = case
    found = simulate(schedule, price)
    held = [0] * schedule.ranks
    held_bytes = [0] * schedule.ranks
    peak, peak_bytes = list(held), list(held)
    for event in found.events:
        size = price.chunks[event.chunk].in_flight_bytes
        if event.kind == "forward":
            held[event.rank] += 1
            held_bytes[event.rank] += size
            peak[event.rank] = max(peak[event.rank], held[event.rank])
            peak_bytes[event.rank] = max(peak_bytes[event.rank], held_bytes[event.rank])
        assert event.held == held[event.rank]
        if event.kind in LAST_PASSES:
            held[event.rank] -= 1
            held_bytes[event.rank] -= size
    assert held == held_bytes == [0] * schedule.ranks
    assert [use.in_flight for use in found.ranks] == peak
    assert [use.in_flight_bytes for use in found.ranks] == peak_bytes


@given(st.integers(1, 5), st.integers(1, 9), st.data())
def test_1f1b_never_exceeds_the_sum_and_the_longest_stage(stages, micro_batches, data):
    price = data.draw(prices(stages))
    stage_s = [
        c.forward_s + c.recompute_s + c.input_gradient_s + c.weight_gradient_s
        for c in price.chunks
    ]
    for boundary in range(stages - 1):
        hop_s = price.activation_s[boundary] + price.gradient_s[boundary]
        stage_s[boundary] += hop_s
        stage_s[boundary + 1] += hop_s

    found = simulate(one_f_one_b(stages, micro_batches, blocking=False), price)

    # Alpa, section 5.2, with all communication counted on both sides.
    assert found.step_s <= sum(stage_s) + (micro_batches - 1) * max(stage_s)


def test_nothing_is_sent_between_two_chunks_of_one_rank():
    free = simulate(interleaved(1, 4, 3), equal(3, hop_s=5.0))
    assert free.step_s == 4 * 3 * 3.0
    # The last rank of DualPipeV runs both chunks around the turn.
    turn = dualpipev(2, 4)
    boundaries = {
        min(event.chunk, event.chunk + (1 if event.kind == "activation" else -1))
        for event in simulate(turn, equal(4, hop_s=5.0)).events
        if event.kind in MESSAGES
    }
    assert boundaries == {0, 2}


def test_messages_at_once_are_counted_once():
    both = (Transfer("activation", 0, 1), Transfer("gradient", 1, 0))
    first = (
        Compute("forward", 0, 0),
        Exchange((Transfer("activation", 0, 0),)),
        Compute("forward", 0, 1),
        Exchange(both),
        Compute("backward", 0, 0),
        Exchange((Transfer("gradient", 1, 1),)),
        Compute("backward", 0, 1),
    )
    second = (
        Exchange((Transfer("activation", 0, 0),)),
        Compute("forward", 1, 0),
        Compute("backward", 1, 0),
        Exchange(both),
        Compute("forward", 1, 1),
        Compute("backward", 1, 1),
        Exchange((Transfer("gradient", 1, 1),)),
    )
    schedule = Schedule(
        name="by hand", micro_batches=2, rank_of=(0, 1), lists=(first, second)
    )

    found = simulate(schedule, equal(2, 1.0, 1.0, 0.0, hop_s=1.0))

    # Rank 1 computes for 4 s, with one exchange of 1 s before, between and after;
    # rank 0 computes 1 s before and 1 s after that, and is ready for each exchange.
    assert found.step_s == 1 + (1 + 2 + 1 + 2 + 1) + 1
    assert [use.communication_s for use in found.ranks] == [3.0, 3.0]
    assert found.bubble_share == pytest.approx(1 - (2 * 4 + 2 * 3) / (2 * 9))


def test_ranks_that_wait_for_each_other_are_an_error():
    up, down = Transfer("activation", 0, 0), Transfer("gradient", 1, 0)
    first = (
        Compute("forward", 0, 0),
        Exchange((down,)),
        Exchange((up,)),
        Compute("backward", 0, 0),
    )
    second = (
        Exchange((up,)),
        Compute("forward", 1, 0),
        Compute("backward", 1, 0),
        Exchange((down,)),
    )
    schedule = Schedule(
        name="knot", micro_batches=1, rank_of=(0, 1), lists=(first, second)
    )
    with pytest.raises(
        PartitionerError, match="rank 0 waits for ever at instruction 1"
    ):
        simulate(schedule, equal(2))
