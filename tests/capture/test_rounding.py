"""Integers that follow one size rounded down, whatever the strides and kernels."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner.capture import capture
from partitioner.capture.rounding import MAX_REFUSED
from partitioner.graph import ModelGraph
from partitioner.verify import verify
from partitioner.verify.inputs import input_tensors
from tests.captured import rerun, two_stages

LAYERS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2)),
    min_size=1,
    max_size=3,
)
"""(kernel, stride, padding) of convolutions in a row."""


class Strided(nn.Module):
    """Strided layers, and then a reshape to the length that is left."""

    def __init__(self, layers: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv1d(2, 2, k, s, min(p, k // 2)) for k, s, p in layers)
        )
        self.head = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        return self.head(h.transpose(1, 2).reshape(x.shape[0], h.shape[2], 2))


def check_lengths(graph: ModelGraph, model: nn.Module, sizes: Iterable[int]) -> None:
    shape = list(graph.inputs[0].shape)
    for size in sizes:
        x = torch.randn(*shape[:-1], size)
        assert torch.equal(rerun(graph, model, [x]), model(x))


@settings(max_examples=8, deadline=None)
@given(layers=LAYERS, size=st.integers(150, 200))
def test_every_length_is_followed(layers: list[tuple[int, int, int]], size: int):
    model = Strided(layers)
    graph = capture(model, torch.randn(2, 2, size))
    assert not any("dimension 2" in n for n in graph.assumptions if "fixed" in n)
    check_lengths(graph, model, range(140, 230, 3))


def test_the_lengths_of_a_speech_model_are_followed_through_a_cut():
    model = Strided([(10, 5, 0), (3, 2, 0), (3, 2, 0), (2, 2, 0)])
    graph = capture(model, torch.randn(2, 2, 800))
    placement = two_stages(graph, "layers.1")
    for size in (799, 533, 400):
        found = verify(graph, placement, input_tensors(graph, torch.randn(2, 2, size)))
        assert found.ok, found


class PadsOdd(nn.Module):
    """Another path through the model for odd lengths."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 2:
            x = nn.functional.pad(x, (0, 1))
        return x.reshape(x.shape[0], -1, 2).sum(-1).reshape(-1, x.shape[1] // 2)


def test_sizes_on_another_path_are_no_evidence():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pad, self.head = PadsOdd(), nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.pad(x)[..., None])

    model = Model()
    graph = capture(model, torch.randn(2, 20))
    check_lengths(graph, model, (4, 12, 18, 26))


class Irregular(nn.Module):
    """Its length is a division at all sizes but a few."""

    TABLE = tuple((size + 1) // 4 + 2 * (size in {37, 38, 39}) for size in range(100))

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, : self.TABLE[x.shape[1]], None])


def test_what_is_no_division_fixes_the_size():
    graph = capture(Irregular(), torch.randn(2, 40))
    (note,) = [note for note in graph.assumptions if note.startswith("fixed")]
    assert "dimension 1 of x (40)" in note


def test_a_model_that_takes_another_path_at_most_sizes_is_not_tried_forever():
    lengths: list[int] = []

    class Chunks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            lengths.append(x.shape[1])
            padding = -x.shape[1] % 8
            padded = F.pad(x, (0, padding)) if padding else x
            return self.head(padded.reshape(x.shape[0], padded.shape[1] // 8, 8))

    graph = capture(Chunks(), torch.randn(2, 16))
    assert any("dimension 1" in n for n in graph.assumptions if "fixed" in n)
    assert len(lengths) <= 8 + MAX_REFUSED
