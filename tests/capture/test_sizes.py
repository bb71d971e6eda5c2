"""Integers from shapes become expressions; what cannot vary is said."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.sizes import FreeSize, SizeExpr, candidates, fit, split
from partitioner.graph import InputSpec, ModelGraph
from partitioner.verify import verify
from tests.capture import toys
from tests.captured import captured, seeded, two_stages
from tests.models import MODELS

BATCH = FreeSize(dims=((0, 0),), value=2, other=3, larger=4)
LENGTH = FreeSize(dims=((0, 1),), value=16, other=7, larger=32)


def spec(name: str, *shape: int) -> InputSpec:
    return InputSpec(name=name, path=("args", 0), shape=shape, dtype=torch.float32)


@pytest.mark.parametrize(
    ("formula", "size"),
    [
        (lambda b, t: b * t, (5, 12)),
        (lambda b, t: 7 * t, (5, 12)),
        (lambda b, t: t - 1, (5, 12)),
        (lambda b, t: b + t + 3, (5, 12)),
        (lambda b, t: t // 2, (5, 12)),
        (lambda b, t: (t - 1) // 2 + 1, (5, 13)),
        (lambda b, t: 4 * b * t, (1, 1)),
    ],
)
def test_fit_finds_the_formula(formula, size):
    base = formula(2, 16)
    others = [formula(3, 16), formula(2, 7)]
    found = fit(base, others, [BATCH, LENGTH])
    assert found is not None
    assert found.evaluate([2, 16]) == base
    assert found.evaluate(size) == formula(*size)


def test_fit_gives_up_where_no_formula_is_known():
    assert fit(16, [17, 300], [BATCH, LENGTH]) is None


@given(
    coefficient=st.integers(1, 9),
    offset=st.integers(-5, 5),
    sizes=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_fit_holds_for_every_linear_formula(coefficient, offset, sizes):
    def formula(batch, length):
        return coefficient * length + offset + 100 * batch

    others = [formula(3, 16), formula(2, 7)]
    found = fit(formula(2, 16), others, [BATCH, LENGTH])
    assert found is not None
    assert found.evaluate(sizes) == formula(*sizes)


def test_expressions_divide_downwards():
    half = SizeExpr(terms=((1, (0,)),), offset=1, divisor=2)
    assert [half.evaluate([n]) for n in (3, 4, 5)] == [2, 2, 3]


def test_candidates_put_the_batch_first_and_equal_sizes_together():
    found = candidates([spec("a", 4, 16, 8), spec("b", 4, 16), spec("c", 9, 4)])
    assert [size.dims for size in found] == [
        ((0, 0), (1, 0)),
        ((0, 1), (1, 1)),
        ((0, 2),),
        ((2, 0),),
        ((2, 1),),
    ]
    assert [size.other for size in found] == [1, 7, 3, 3, 5]


def test_a_number_as_first_input_does_not_hide_the_batch():
    found = candidates([spec("rate"), spec("x", 4, 6)])
    assert found[0].dims == ((1, 0),)
    assert candidates([spec("rate")]) == []


def symbols(graph: ModelGraph) -> dict[str, tuple[int, ...]]:
    return {item.name: item.symbols for item in graph.inputs}


def test_input_sizes_that_may_vary_are_marked():
    assert symbols(captured("gpt2")) == {"input_ids": (0, 1)}
    assert symbols(captured("t5")) == {
        "input_ids": (0, 1),
        "attention_mask": (0, 1),
        "decoder_input_ids": (0, 2),
    }
    assert symbols(captured("vit")) == {"pixel_values": (0, -1, -1, -1)}


def test_what_may_not_vary_is_noted_with_the_reason():
    (channels,) = [n for n in captured("resnet").assumptions if "dimension 1" in n]
    assert channels.startswith("fixed: dimension 1 of x (3): ")
    assert "3 channels" in channels


OTHERS = [(1, 16), (5, 16), (3, 7), (1, 24)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("size", OTHERS, ids=str)
def test_a_cut_model_takes_other_sizes(name: str, size: tuple[int, int]):
    graph = captured(name)
    batch, length = size
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randint(3, 100, (batch, length), generator=generator)
        if item.name == "input_ids"
        else torch.ones(batch, length, dtype=torch.long)
        for item in graph.inputs
    ]
    inside = {"gpt2": "transformer.h.1.attn@0", "llama": "model.layers.1.self_attn@0"}
    first = inside.get(name, "bert.encoder.layer.1.attention.self@0")
    assert verify(graph, two_stages(graph, f"{first}:2"), tensors).ok


def test_encoder_and_decoder_lengths_vary_apart():
    graph = captured("t5")
    shapes = {
        "input_ids": (3, 9),
        "attention_mask": (3, 9),
        "decoder_input_ids": (3, 5),
    }
    tensors = [torch.ones(shapes[item.name], dtype=torch.long) for item in graph.inputs]
    placement = two_stages(graph, "decoder.block.0.layer.0.SelfAttention@0")
    assert verify(graph, placement, tensors).ok


@pytest.mark.parametrize("size", [(1, 4), (3, 11), (8, 2)])
def test_glue_at_the_root_follows_the_sizes(size: tuple[int, int]):
    graph = capture(seeded(toys.Sizes()), torch.randn(2, 6, 6))
    assert symbols(graph)["x"] == (0, 1, -1)  # the length equals the width
    assert verify(graph, two_stages(graph, "@0:3"), [torch.randn(*size, 6)]).ok
    graph = capture(seeded(toys.Sizes()), torch.randn(2, 8, 6))
    assert symbols(graph)["x"] == (0, 1, -1)
    tensors = [torch.randn(*size, 6)]
    for cut in ("first@0", "@0:3", "@0:5"):
        assert verify(graph, two_stages(graph, cut), tensors).ok


def test_a_length_that_stops_following_is_fixed():
    """Shorter inputs fit a plain formula; longer ones do not."""
    graph = capture(seeded(toys.CapsLength()), torch.randn(2, 16, 6))
    assert symbols(graph)["x"] == (0, -1, -1)
    assert any("toys.py" in n for n in graph.assumptions if "dimension 1" in n)


def test_the_sizes_that_were_seen_are_named():
    """A branch between them is not: nobody looked there."""

    class Longer(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.second(-h if x.shape[1] > 64 else h)

    graph = capture(seeded(Longer()), torch.randn(2, 16, 6))
    notes = [text for text in graph.assumptions if text.startswith("sizes: ")]
    assert [note.partition(";")[0] for note in notes] == [
        "sizes: dimension 0 of x was recorded at 2, 1 and 4",
        "sizes: dimension 1 of x was recorded at 16, 7 and 32",
    ]
    assert all("plan.verify(inputs=…)" in note for note in notes)
    placement = two_stages(graph, "first")
    assert verify(graph, placement, [torch.randn(2, 40, 6)]).ok
    assert not verify(graph, placement, [torch.randn(2, 65, 6)]).ok  # and verify tells


def test_a_size_that_a_model_does_not_take_is_not_named():
    class Short(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] > 16:
                raise ValueError
            return self.second(self.first(x))

    graph = capture(seeded(Short()), torch.randn(2, 16, 6))
    (note,) = [text for text in graph.assumptions if "dimension 1" in text]
    assert "was recorded at 16 and 7;" in note


def test_rounding_up_is_told_from_rounding_down():
    class Halves(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = -(-x.shape[1] // 2)
            return self.second(self.first(x)[:, :half])

    graph = capture(seeded(Halves()), torch.randn(2, 16, 6))
    assert symbols(graph)["x"] == (0, 1, -1)
    for length in (9, 10, 31):
        tensors = [torch.randn(2, length, 6)]
        assert verify(graph, two_stages(graph, "first"), tensors).ok


def test_a_model_that_takes_even_lengths_only():
    class Pairs(toys.Toy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, width = x.shape
            pairs = self.first(x).view(batch, length // 2, 2, width).sum(2)
            return self.second(pairs)

    graph = capture(seeded(Pairs()), torch.randn(2, 16, 6))
    assert symbols(graph)["x"] == (0, 1, -1)
    assert not any("fixed: dimension 1" in note for note in graph.assumptions)
    for length in (6, 20):
        tensors = [torch.randn(3, length, 6)]
        assert verify(graph, two_stages(graph, "first"), tensors).ok


def test_a_branch_on_a_size_is_noted_with_its_line():
    graph = capture(seeded(toys.BranchesOnSize()), torch.randn(2, 6))
    (note,) = [text for text in graph.assumptions if "dimension 0" in text]
    assert note.startswith("fixed: dimension 0 of x (2)")
    assert "tests/capture/toys.py:" in note
    assert symbols(graph)["x"] == (-1, -1)


def test_sizes_are_checked_with_all_of_them_changed():
    """max() of two sizes looks like a sum or one of them if each moves alone."""

    class Widest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            total = self.first(x).sum(1) + self.second(y).sum(1)
            return total * torch.full((6,), float(x.shape[1] * y.shape[1] > 60))

    graph = capture(seeded(Widest()), (torch.randn(2, 8, 6), torch.randn(2, 10, 6)))
    flexible = symbols(graph)
    sizes = [
        (a if flexible["x"][1] >= 0 else 8, b if flexible["y"][1] >= 0 else 10)
        for a, b in product((4, 8, 16), (5, 10))
    ]
    for a, b in sizes:
        tensors = [torch.randn(2, a, 6), torch.randn(2, b, 6)]
        assert verify(graph, two_stages(graph, "first"), tensors).ok, (a, b)


def test_images_of_another_size():
    graph = captured("resnet")
    assert symbols(graph)["x"] == (0, -1, 1, 1)
    placement = two_stages(graph, "stage1.0")
    assert verify(graph, placement, [torch.randn(3, 3, 20, 20)]).ok
    assert MODELS["resnet"].example().shape == (2, 3, 16, 16)


class TextAndImage(nn.Module):
    """Mixes a text with a square image, each of a size of its own."""

    def __init__(self, *, places: int | None = None, side: int | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.places = nn.Embedding(places, 6) if places else None
        self.flat = nn.Linear(side * side, 6) if side else None
        self.colours = nn.Conv2d(3, 6, 1)
        self.last = nn.Linear(6, 6)

    def forward(self, text: Tensor, mask: Tensor, image: Tensor) -> Tensor:
        h = self.words(text) * mask[..., None]
        if self.places is not None:
            h = h + self.places.weight
        k = self.colours(image + image.mT)
        pooled = (
            k.mean((2, 3)) if self.flat is None else self.flat(k.flatten(2)).mean(1)
        )
        return self.last(h) * pooled[:, None]


def text_and_image(length: int, side: int) -> dict[str, Tensor]:
    return {
        "text": torch.arange(2 * length).reshape(2, length) % 10,
        "mask": torch.ones(2, length),
        "image": torch.randn(2, 3, side, side),
    }


@pytest.mark.parametrize(
    ("model", "expected", "other"),
    [
        (TextAndImage(side=8), {"text": (0, 1), "mask": (0, 1), "image": "fixed"}, 5),
        (TextAndImage(places=8), {"text": "fixed", "image": (0, -1, 1, 1)}, 12),
        (TextAndImage(places=8, side=8), {"text": "fixed", "image": "fixed"}, None),
        (TextAndImage(), {"text": (0, 1), "mask": (0, 1), "image": (0, -1, 1, 1)}, 5),
    ],
    ids=["side fixed", "length fixed", "both fixed", "both free"],
)
def test_sizes_that_are_equal_by_accident_vary_apart(model, expected, other):
    graph = capture(seeded(model), text_and_image(8, 8))
    found = symbols(graph)
    for name, wanted in expected.items():
        fixed = all(symbol == -1 for symbol in found[name][1:])
        assert fixed if wanted == "fixed" else found[name] == wanted
    if other:
        sizes = (other, 8) if expected["image"] == "fixed" else (8, other)
        if "fixed" not in expected.values():
            sizes = (other, other)
        tensors = list(text_and_image(*sizes).values())
        assert verify(graph, two_stages(graph, "colours"), tensors).ok
    names = [n.partition(" (")[0] for n in graph.assumptions if n.startswith("fixed:")]
    assert len(names) == len(set(names))  # each once


def test_a_size_is_split_by_rank_then_by_dimension_then_by_input():
    inputs = (spec("a", 2, 8, 8), spec("b", 2, 8), spec("c", 2, 8))
    (_, joint) = candidates(inputs)
    three, two = split(joint, inputs)
    assert (three.dims, two.dims) == (((0, 1), (0, 2)), ((1, 1), (2, 1)))
    assert [part.dims for part in split(three, inputs)] == [((0, 1),), ((0, 2),)]
    assert [part.dims for part in split(two, inputs)] == [((1, 1),), ((2, 1),)]
    assert split(split(two, inputs)[0], inputs) == []
