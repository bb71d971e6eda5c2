"""Closed formulas of the papers, reproduced exactly for equal stages."""

from __future__ import annotations

import pytest

from partitioner.errors import OptionError
from partitioner.simulate import gpipe, interleaved, simulate, zero_bubble
from tests.simulate.pipelines import equal

SIZES = [(1, 1), (2, 2), (2, 7), (3, 4), (4, 8), (6, 13), (8, 16)]


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_gpipe_bubble_is_that_of_section_2_3(ranks, micro_batches):
    found = simulate(gpipe(ranks, micro_batches), equal(ranks, 1.0, 1.5, 0.5))

    assert found.step_s == (micro_batches + ranks - 1) * 3.0
    expected = (ranks - 1) / (micro_batches + ranks - 1)
    assert found.bubble_shares == pytest.approx([expected] * ranks, rel=1e-12)
    assert [use.in_flight for use in found.ranks] == [micro_batches] * ranks


@pytest.mark.parametrize("chunks_per_rank", [1, 2, 3, 4])
@pytest.mark.parametrize(("ranks", "groups"), [(1, 3), (2, 1), (2, 4), (4, 2), (5, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks_per_rank(
    ranks, groups, chunks_per_rank
):
    micro_batches = ranks * groups
    schedule = interleaved(ranks, micro_batches, chunks_per_rank)

    found = simulate(schedule, equal(schedule.chunks, 1.0, 1.5, 0.5))

    # Megatron-LM, section 2.2.2: the bubble is (p - 1) (t_f + t_b) / v, where t_f and
    # t_b are those of a whole rank, that is v chunks.
    work_s = micro_batches * chunks_per_rank * 3.0
    assert found.step_s == work_s + (ranks - 1) * 3.0
    expected = (ranks - 1) / (chunks_per_rank * micro_batches + ranks - 1)
    assert found.bubble_share == pytest.approx(expected, rel=1e-12)


def test_interleaving_holds_what_megatron_warms_up_with():
    found = simulate(interleaved(4, 8, 2), equal(8))

    # 2 (p - r - 1) + (v - 1) p forwards before the first backward, plus the one that
    # the steady state begins with.
    assert [use.in_flight for use in found.ranks] == [11, 9, 7, 5]


def test_interleaving_refuses_micro_batches_that_leave_a_group_open():
    with pytest.raises(OptionError, match="5 micro-batches on 4 ranks"):
        interleaved(4, 5, 2)


# The paper's handcrafted schedules are drawn for equal times; their formulas hold for
# weight gradients that are no longer than the other two passes.
TIMES = [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (2.0, 3.0, 2.0), (4.0, 6.0, 1.0)]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_zb_h1_bubble_and_memory(ranks, times):
    micro_batches = 2 * ranks + 3
    forward_s, input_s, weight_s = times
    found = simulate(
        zero_bubble(ranks, micro_batches, full=False), equal(ranks, *times)
    )

    # Zero Bubble Pipeline Parallelism, section 2.3: (p - 1) (T_F + T_B - T_W), and
    # the memory of 1F1B, p micro-batches.
    bubble_s = (ranks - 1) * (forward_s + input_s - weight_s)
    assert found.period_s == micro_batches * sum(times) + bubble_s
    assert [use.in_flight for use in found.ranks] == [ranks] * ranks


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_zb_h2_bubble_and_memory(ranks, times):
    micro_batches = 2 * ranks + 3
    forward_s, input_s, weight_s = times
    found = simulate(zero_bubble(ranks, micro_batches, full=True), equal(ranks, *times))

    # The same section: (p - 1) (T_F + T_B - 2 T_W), and 2 p - 1 micro-batches.
    bubble_s = (ranks - 1) * (forward_s + input_s - 2 * weight_s)
    assert found.period_s == micro_batches * sum(times) + bubble_s
    assert max(use.in_flight for use in found.ranks) == 2 * ranks - 1


def test_zb_h2_is_without_bubble_where_the_passes_are_equal():
    found = simulate(zero_bubble(4, 12, full=True), equal(4))

    for use in found.ranks:
        assert use.last_s - use.first_s == use.busy_s == 12 * 3.0
