"""Headers are read once where they repeat, and a false promise is found out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.header import Header, SentHeader, read_now


def packed(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64).view(torch.uint8)


def expecting(*, repeats: bool = True, new: bool = False) -> Header:
    header = Header()
    header.expect(repeats=repeats, new=new)
    return header


def test_reads_every_header_unless_they_repeat():
    header = expecting(repeats=False)
    assert header.read(packed(1, 2), training=True) == [1, 2]
    assert header.read(packed(3, 4), training=True) == [3, 4]
    header.check()


def test_a_repeated_header_is_not_read_again():
    header = expecting()
    first = header.read(packed(1, 2), training=True)
    assert header.read(packed(1, 2), training=True) is first
    header.check()


def test_a_header_that_changed_all_the_same_is_found_at_the_check():
    header = expecting()
    header.read(packed(1, 2), training=True)
    assert header.read(packed(1, 3), training=True) == [1, 2]
    header.read(packed(1, 2), training=True)
    with pytest.raises(RuntimeGuardError, match="changed their sizes"):
        header.check()
    assert header.read(packed(1, 3), training=True) == [1, 3]
    header.check()


def test_what_was_sent_last_may_be_written_over():
    header = expecting()
    buffer = packed(1, 2)
    header.read(buffer, training=True)
    buffer.copy_(packed(5, 6))
    header.read(packed(1, 2), training=True)
    header.check()


def test_a_new_batch_is_read_again_and_forgets_what_was_found():
    header = expecting()
    header.read(packed(1, 2), training=True)
    header.read(packed(9, 9), training=True)
    header.expect(repeats=True, new=True)
    header.check()
    assert header.read(packed(9, 9), training=True) == [9, 9]


def test_training_and_evaluation_have_headers_of_their_own():
    header = expecting()
    assert header.read(packed(1), training=True) == [1]
    assert header.read(packed(2), training=False) == [2]
    assert header.read(packed(1), training=True) == [1]
    header.check()


def test_a_header_is_sent_anew_when_its_numbers_change():
    sent = SentHeader()
    device = torch.device("cpu")
    first = sent.packed([1, 2], device)
    assert sent.packed([1, 2], device) is first
    assert read_now(sent.packed([2, 1], device)) == [2, 1]
    assert read_now(first) == [1, 2]
