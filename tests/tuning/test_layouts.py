from __future__ import annotations

import pytest

from partitioner.errors import OptionError
from partitioner.tuning import Layout
from partitioner.tuning.layouts import layouts


def test_one_gpu_is_one_layout():
    assert list(layouts(1)) == [Layout()]


def test_every_grid_takes_all_gpus_but_the_baseline():
    found = list(layouts(6))
    assert [(one.stages, one.replicas) for one in found] == [
        (1, 1),
        (1, 6),
        *((2, 3), (2, 3)),
        *((3, 2), (3, 2)),
        *((6, 1), (6, 1)),
    ]
    assert [one.schedule for one in found[2:]] == ["1f1b", "dualpipev"] * 3
    assert [one.gpus for one in found] == [1] + [6] * 7


def test_names():
    assert [one.name for one in layouts(4)] == [
        "1 GPU",
        "data parallel × 4",
        "2 stages × 2",
        "2 stages × 2, dualpipev",
        "4 stages",
        "4 stages, dualpipev",
    ]


def test_states_are_shared_where_there_are_replicas():
    assert [one.zero_stage for one in layouts(2)] == [0, 1, 0, 0]


def test_micro_batches_are_what_the_replicas_leave_each_other():
    assert Layout(stages=2, replicas=4).micro_batches(4096, 8) == 128
    with pytest.raises(OptionError, match=r"20 samples .* 3 replicas .* of 2") as told:
        Layout(replicas=3).micro_batches(20, 2)
    assert told.value.hint == "use a batch that is a multiple of 6"
