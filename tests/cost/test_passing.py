"""Gradients of a micro-batch against the room that its backward makes."""

from __future__ import annotations

from partitioner.cost.passing import passing_bytes, read_alone
from partitioner.solve.parts import Value

BEFORE, BETWEEN, TAIL = -1, -1, -1
BLOCKS = (BEFORE, 0, 0, BETWEEN, 1, TAIL)


def test_a_block_s_gradients_take_what_it_saved_wherever_in_the_block():
    gradients, saved = (0, 6, 5, 0, 9, 0), (0, 20, 0, 0, 4, 0)
    assert passing_bytes(gradients, saved, BLOCKS, None) == [0, 0, 0, 0, 5, 0]


def test_a_recomputed_block_frees_what_it_alone_read():
    gradients, saved = (0, 6, 5, 0, 9, 0), (0, 20, 0, 0, 4, 0)
    found = passing_bytes(gradients, saved, BLOCKS, {0: 3})
    assert sum(found[1:3]) == 6 + 5 - 3
    assert found[4] == 9


def test_outside_blocks_a_unit_has_its_own_room_and_the_tail_none():
    gradients, saved = (7, 0, 0, 8, 0, 9), (1, 0, 0, 2, 0, 3)
    assert passing_bytes(gradients, saved, BLOCKS, None) == [0, 0, 0, 6, 0, 9]
    # Before the first block: of what is recomputed nothing is there to go.
    assert passing_bytes(gradients, saved, BLOCKS, {}) == [6, 0, 0, 6, 0, 9]


def test_without_blocks_every_unit_has_its_own_room():
    assert passing_bytes((7, 1), (2, 3), (-1, -1), None) == [5, 0]


def test_what_several_blocks_read_is_nobody_s_alone():
    def value(producer, *consumers, wire_bytes):
        return Value(
            producer=producer,
            consumers=consumers,
            hop_s=0.0,
            wire_bytes=wire_bytes,
        )

    values = (
        value(0, 1, 2, wire_bytes=1),  # twice in block 0
        value(0, 1, 4, wire_bytes=2),  # in both
        value(1, 2, 4, wire_bytes=4),  # made in block 0, read in 1 as well
        value(3, 5, wire_bytes=8),  # in no block
    )
    assert read_alone(values, BLOCKS) == {0: 1, 1: 4}
