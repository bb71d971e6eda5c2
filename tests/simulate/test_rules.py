from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner.errors import PartitionerError
from partitioner.simulate import Compute, Exchange, Transfer, gpipe
from partitioner.simulate.from_deepspeed import one_f_one_b
from partitioner.simulate.rules import require_sound
from tests.simulate.pipelines import equal


def with_list(schedule, rank, steps):
    lists = list(schedule.lists)
    lists[rank] = tuple(steps)
    return replace(schedule, lists=tuple(lists))


SOUND = gpipe(2, 2)
FORWARDS, BACKWARDS = SOUND.lists[1][:2], SOUND.lists[1][2:]


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        (FORWARDS, "micro-batch 0, chunk 1 runs forward"),
        ((), "micro-batch 0, chunk 1 runs nothing"),
        ((*BACKWARDS, *FORWARDS), "chunk 1 runs backward, forward"),
        ((*FORWARDS, *FORWARDS, *BACKWARDS), "chunk 1 runs forward, forward, backward"),
        ((*SOUND.lists[1], Compute("forward", 0, 0)), "does not belong to rank 1"),
        ((*SOUND.lists[1], Compute("forward", 1, 2)), "does not belong to rank 1"),
        (
            (*SOUND.lists[1], Exchange((Transfer("activation", 1, 0),))),
            "leads out of the pipeline",
        ),
        (
            (Exchange((Transfer("gradient", 2, 0),)), *SOUND.lists[1]),
            "leads out of the pipeline",
        ),
        (
            (*SOUND.lists[1], Exchange((Transfer("gradient", 1, 0),))),
            r"takes place on ranks \[1\], not on \[0, 1\]",
        ),
        (
            (Exchange((Transfer("gradient", 1, 0),)), *SOUND.lists[1]),
            "is sent before it is computed",
        ),
    ],
)
def test_unsound_lists_are_refused(steps, fault):
    with pytest.raises(PartitionerError, match=fault):
        require_sound(with_list(SOUND, 1, steps), equal(2))


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_price_for_another_number_of_chunks_is_refused(chunks):
    with pytest.raises(PartitionerError, match=f"has 2 chunks, the price has {chunks}"):
        require_sound(SOUND, equal(chunks))


def test_a_price_for_another_number_of_boundaries_is_refused():
    price = replace(equal(2), activation_s=())
    with pytest.raises(PartitionerError, match="boundaries"):
        require_sound(SOUND, price)


def test_deepspeeds_lists_are_sound():
    require_sound(one_f_one_b(3, 5), equal(3))
