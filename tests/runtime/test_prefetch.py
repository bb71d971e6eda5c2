"""Micro-batches come in order, on the device where they are wanted."""

from __future__ import annotations

import pytest
import torch

from partitioner.runtime.prefetch import DEPTH, Prefetched

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def pairs(count: int) -> list[tuple[torch.Tensor, tuple[torch.Tensor]]]:
    return [(torch.full((4,), n), (torch.tensor([-n]),)) for n in range(count)]


def test_hands_out_as_they_are_without_a_gpu():
    given = pairs(3)
    ahead = Prefetched(torch.device("cpu"))
    ahead.load(given, inputs=True, labels=True)
    assert len(ahead) == 3
    assert [ahead.next() is each for each in given] == [True] * 3
    assert len(ahead) == 0
    with pytest.raises(IndexError):
        ahead.next()


def test_a_new_batch_takes_the_place_of_what_is_left():
    ahead = Prefetched(torch.device("cpu"))
    ahead.load(pairs(3), inputs=True, labels=True)
    ahead.next()
    ahead.load(["a", "b"], inputs=True, labels=True)
    assert [ahead.next(), ahead.next()] == ["a", "b"]


@on_gpu
@pytest.mark.parametrize(("inputs", "labels"), [(True, False), (False, True)])
def test_moves_only_what_is_wanted(inputs, labels):
    device = torch.device("cuda", 0)
    ahead = Prefetched(device)
    ahead.load(pairs(DEPTH + 3), inputs=inputs, labels=labels)
    for number in range(DEPTH + 3):
        first, (second,) = ahead.next()
        assert (first.is_cuda, second.is_cuda) == (inputs, labels)
        assert first.tolist() == [number] * 4
        assert second.tolist() == [-number]


@on_gpu
def test_keeps_the_order_in_memory_and_what_is_on_the_device():
    device = torch.device("cuda", 0)
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = torch.ones(3, device=device)
    ahead = Prefetched(device)
    ahead.load([((images, there), None)], inputs=True, labels=True)
    (moved, same), nothing = ahead.next()
    assert moved.stride() == images.stride()
    assert same is there
    assert nothing is None
