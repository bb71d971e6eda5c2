from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partitioner.simulate import gpipe, grid, simulate, zero_bubble
from partitioner.simulate.from_deepspeed import one_f_one_b
from tests.simulate.pipelines import equal, priced_schedules


def test_every_pass_is_drawn_in_its_columns():
    # 12 s in 24 columns: a forward takes two of them, a backward six.
    found = simulate(one_f_one_b(2, 2, blocking=False), equal(2, 1.0, 2.0, 1.0))

    assert grid(found, width=len("rank 0 ") + 24 + len(" 100.0 %")).splitlines() == [
        "rank 0 0011······aaaaaa··bbbbbb  33.3 %",
        "rank 1 ··00aaaaaa11bbbbbb······  33.3 %",
    ]


def test_weight_gradients_have_marks_of_their_own():
    drawn = grid(simulate(zero_bubble(2, 3, full=False), equal(2)))

    assert "A" in drawn
    assert "a" in drawn


def test_messages_that_are_waited_for_are_drawn():
    drawn = grid(simulate(one_f_one_b(2, 2), equal(2, hop_s=1.0)))

    assert "-" in drawn


@given(priced_schedules(), st.integers(40, 120))
def test_rows_fill_the_width_and_no_more(case, width):
    found = simulate(*case)

    lines = grid(found, width=width).splitlines()

    assert len(lines) == len(found.ranks)
    assert {len(line) for line in lines} == {width}


def test_marks_start_again_after_ten_micro_batches():
    drawn = grid(simulate(gpipe(1, 12), equal(1)), width=80)

    row = drawn.split()[2]
    assert row.index("9") < row.rindex("0") < row.rindex("1")
