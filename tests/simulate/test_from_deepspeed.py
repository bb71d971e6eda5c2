from __future__ import annotations

import pytest

from partitioner.cost.inflight import in_flight
from partitioner.errors import OptionError
from partitioner.simulate import Compute, Exchange, Transfer, simulate
from partitioner.simulate.from_deepspeed import dualpipev, one_f_one_b
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
