from __future__ import annotations

from typing import Any

import pytest

from partitioner.cost.inflight import in_flight
from partitioner.errors import OptionError
from partitioner.simulate import Compute, Exchange, Transfer, simulate
from partitioner.simulate.from_deepspeed import dualpipev, eager, one_f_one_b
from tests.simulate.pipelines import equal

SIZES = [(1, 1), (1, 5), (2, 1), (2, 2), (3, 8), (4, 4), (4, 3), (7, 16)]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_1f1b_has_the_bubble_of_gpipe_and_less_memory(stages, micro_batches, blocking):
    schedule = one_f_one_b(stages, micro_batches, blocking=blocking)

    found = simulate(schedule, equal(stages, 1.0, 1.5, 0.5, in_flight_bytes=7))

    assert found.step_s == (micro_batches + stages - 1) * 3.0
    expected = (stages - 1) / (micro_batches + stages - 1)
    assert found.bubble_shares == pytest.approx([expected] * stages, rel=1e-12)
    held = [min(stages - stage, micro_batches) for stage in range(stages)]
    assert [use.in_flight for use in found.ranks] == held
    assert [use.in_flight_bytes for use in found.ranks] == [7 * n for n in held]
    assert in_flight(stages, micro_batches) == tuple(held)


def test_1f1b_of_one_micro_batch_waits_for_every_message():
    found = simulate(one_f_one_b(3, 1), equal(3, 1.0, 1.0, 1.0, hop_s=0.5))

    assert found.step_s == 3 * 3.0 + 2 * 2 * 0.5
    assert [use.communication_s for use in found.ranks] == [1.0, 2.0, 1.0]


def test_1f1b_sends_and_receives_like_the_engine():
    schedule = one_f_one_b(2, 2)

    assert schedule.lists[0] == (
        Compute("forward", 0, 0),
        Exchange((Transfer("activation", 0, 0),)),
        Compute("forward", 0, 1),
        Exchange((Transfer("gradient", 1, 0),)),
        Exchange((Transfer("activation", 0, 1),)),
        Compute("backward", 0, 0),
        Exchange((Transfer("gradient", 1, 1),)),
        Compute("backward", 0, 1),
    )


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_eager_has_the_bubble_of_1f1b_and_twice_as_many_in_flight(
    stages, micro_batches
):
    found = simulate(
        eager(stages, micro_batches), equal(stages, 1.0, 1.5, 0.5, in_flight_bytes=7)
    )

    assert found.step_s == (micro_batches + stages - 1) * 3.0
    held = [min(2 * (stages - s) - 1, micro_batches) for s in range(stages)]
    assert [use.in_flight for use in found.ranks] == held
    assert [use.in_flight_bytes for use in found.ranks] == [7 * n for n in held]
    assert in_flight(stages, micro_batches, "eager-1f1b") == tuple(held)


def test_eager_hides_messages_but_those_that_fill_and_drain():
    stages, micro_batches, hop_s = 4, 16, 0.25
    price = equal(stages, 1.0, 1.0, 1.0, hop_s=hop_s)

    hidden = simulate(eager(stages, micro_batches), price)
    waited = simulate(one_f_one_b(stages, micro_batches), price)

    fill_and_drain_s = (stages - 1) * (3.0 + 2 * hop_s)
    assert hidden.step_s == micro_batches * 3.0 + fill_and_drain_s
    # Every micro-batch crosses both boundaries of a middle stage, there and back.
    assert waited.step_s >= hidden.step_s + (micro_batches - stages) * 2 * hop_s


def test_eager_waits_for_a_buffer_as_the_engine_does():
    """Two stages, by hand: messages of 2 s, forwards of 1 s, backwards of 2 s."""
    found = simulate(eager(2, 3), equal(2, 1.0, 1.0, 1.0, hop_s=2.0))
    ran: dict[Any, Any] = {
        (event.rank, event.kind, event.micro_batch): (event.start_s, event.end_s)
        for event in found.events
    }
    assert [ran[0, "forward", n] for n in range(3)] == [(0, 1), (1, 2), (2, 3)]
    # The second activation leaves when the first is taken out, at 3 s.
    assert ran[1, "forward", 0] == (3, 4)
    assert ran[1, "backward", 0] == (4, 6)
    assert ran[1, "forward", 1] == (6, 7)
    assert ran[1, "backward", 1] == (7, 9)
    assert ran[1, "forward", 2] == (9, 10)
    assert ran[1, "backward", 2] == (10, 12)
    # The second gradient is made at 9 s, when the first has come and is used up only
    # at 10 s; so it comes at 12 s; the third at 16 s.
    assert ran[0, "backward", 0] == (8, 10)
    assert ran[0, "backward", 1] == (12, 14)
    assert ran[0, "backward", 2] == (16, 18)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (3, 7), (4, 12), (8, 20)])
def test_dualpipev_has_the_bubble_and_the_memory_of_its_table(ranks, micro_batches):
    schedule = dualpipev(ranks, micro_batches)
    assert schedule.rank_of == (*range(ranks), *range(ranks - 1, -1, -1))

    found = simulate(schedule, equal(2 * ranks, 1.0, 0.75, 0.25))

    # DeepSeek-V3 technical report, table 2, for PP = 2 ranks chunks: the bubble is
    # (PP/2 - 1) (F&B + B - 3 W), the memory PP + 1. DeepSpeed runs forward and
    # backward one after the other (F&B = F + B) and puts no weight gradient off (W =
    # 0).
    assert found.step_s == 2 * micro_batches * 2.0 + (ranks - 1) * (2.0 + 1.0)
    assert [use.in_flight for use in found.ranks] == [2 * ranks + 1] * ranks


def test_dualpipev_with_longer_backwards_stays_within_its_formula():
    found = simulate(dualpipev(4, 12), equal(8, 1.0, 1.0, 1.0))

    bubble_s = found.step_s - 2 * 12 * 3.0
    assert 0 < bubble_s <= 3 * (3.0 + 2.0)


def test_dualpipev_refuses_too_few_micro_batches():
    with pytest.raises(OptionError, match="dualpipev cannot run 7 micro-batches on 4"):
        dualpipev(4, 7)
