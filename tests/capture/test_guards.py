"""What Python decides by sizes becomes guards; a batch that breaks one is refused."""

from __future__ import annotations

import copy
import json
import math
import pickle
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partitioner.capture import capture
from partitioner.capture.polynomials import lower_bound, polynomial
from partitioner.capture.records import Ref
from partitioner.capture.size_log import SizeLog
from partitioner.emit import Placement, emit
from partitioner.emit.build import batch_adapter
from partitioner.errors import RuntimeGuardError
from partitioner.graph import ModelGraph, info
from partitioner.runtime.guards import evaluate
from partitioner.verify import verify
from tests.capture import toys
from tests.captured import captured, seeded, two_stages


class Branches(toys.Toy):
    """Between the layers, ``decide`` says what to multiply by."""

    def __init__(self, decide: Any) -> None:
        super().__init__()
        self.decide = decide

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(h * 2 if self.decide(h) else h)


TABLE = [False] * 3 + [True] * 9


@lru_cache
def cached(length: int) -> bool:
    return length > 70


DECISIONS = {
    "x.size(1) <= 64": (lambda h: h.shape[1] > 64, 64, 65),
    "x.size(1) < 64": (lambda h: not h.size(1) < 64, 63, 64),
    "x.size(1) != 77": (lambda h: h.size()[1] == 77, 78, 77),
    "x.size(1) > 6": (lambda h: not h.size(-2) > 6, 7, 6),
    "x.size(1) <= 100": (lambda h: min(h.shape[1], 100) != h.shape[1], 100, 101),
    "x.size(1) != 4": (lambda h: max(h.shape[1], 4) == 4, 5, 4),
    "x.size(1) % 5 != 3": (lambda h: h.shape[1] % 5 == 3, 14, 13),
    "x.size(0) * x.size(1) < 150": (
        lambda h: h.shape[0] * h.shape[1] >= 150,
        74,
        75,
    ),
    "(x.size(0) * x.size(1)) * 6 <= 1200": (lambda h: h.numel() > 1200, 100, 101),
    "ceil(x.size(1) / 64) == 1": (lambda h: math.ceil(h.shape[1] / 64) > 1, 64, 65),
    "int(x.size(1) * 0.01) == 0": (lambda h: int(h.shape[1] * 0.01), 99, 100),
    "x.size(1) // 40 == 0": (lambda h: TABLE[h.shape[1] // 40 * 3], 39, 40),
    "len(range(0, x.size(1), 50)) == 1": (
        lambda h: list(range(0, h.shape[1], 50))[1:],
        50,
        51,
    ),
    "x.size(1) <= 70": (lambda h: cached(h.shape[1]), 70, 71),
    "ceil(x.size(1) / 45) == 1": (lambda h: len(h.split(45, dim=1)) > 1, 45, 46),
    "(2 * x.size(1)) + 1 <= 101": (
        lambda h: torch.cat([h, h, h[:, :1]], 1).shape[1] > 101,
        50,
        51,
    ),
}


def refusal(graph: ModelGraph, tensors: list[Tensor]) -> str:
    """Return why a batch is refused; "" if it is accepted."""
    layers = emit(graph, two_stages(graph, "first"))
    try:
        batch_adapter(graph, layers)(tuple(tensors))
    except RuntimeGuardError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", DECISIONS)
def test_a_batch_at_which_a_branch_flips_is_refused(text: str):
    decide, holds, flips = DECISIONS[text]
    graph = capture(seeded(Branches(decide)), torch.randn(2, 16, 6))
    assert text in {guard.text for guard in graph.guards}
    accepted, refused = torch.randn(2, holds, 6), torch.randn(2, flips, 6)
    assert refusal(graph, [accepted]) == ""
    assert verify(graph, two_stages(graph, "first"), [accepted]).ok
    assert not verify(graph, two_stages(graph, "first"), [refused]).ok
    message = refusal(graph, [refused])
    assert f"dimension 1 of 'x' is {flips}" in message
    assert "test_guards.py:" in message
    assert "partition again with example inputs of this size" in message


SIZES = st.integers(1, 40)


def expressions() -> st.SearchStrategy[Any]:
    """Expressions of two sizes; a divisor is a positive number."""
    leaves = st.integers(-9, 9) | st.sampled_from([("size", 0), ("size", 1)])
    return st.recursive(
        leaves,
        lambda inner: (
            st.tuples(st.sampled_from("+-*"), inner, inner)
            | st.tuples(st.sampled_from(["//", "%"]), inner, st.integers(1, 9))
            | st.tuples(st.just("neg"), inner)
        ),
        max_leaves=8,
    )


@given(expression=expressions(), sizes=st.tuples(SIZES, SIZES))
def test_a_polynomial_is_the_expression_and_keeps_its_bounds(expression, sizes):
    value = evaluate(expression, sizes)
    found = polynomial(expression)
    total = sum(
        coefficient * math.prod(evaluate(factor, sizes) for factor in factors)
        for factors, coefficient in found.items()
    )
    assert total == value
    assert lower_bound(found) <= value
    assert lower_bound(found, -1) <= -value


@given(
    numbers=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    divisor=st.integers(1, 9),
    factor=st.sampled_from([0.5, 2.0, 1.25, 3, 7]),
)
def test_numbers_that_are_followed_are_what_python_computes(numbers, divisor, factor):
    log = SizeLog(Silence())
    a, b = (log.read(Ref(k), 0, value) for k, value in enumerate(numbers))
    x, y = numbers
    for mine, plain in [
        (a + b * factor, x + y * factor),
        (3 - a // divisor, 3 - x // divisor),
        (a**2 % (b + divisor), x**2 % (y + divisor)),
        (-a & 7 | b, -x & 7 | y),
        (a / divisor, x / divisor),
        (math.ceil(a / divisor), math.ceil(x / divisor)),
        (divmod(b, divisor)[1] << 2, divmod(y, divisor)[1] << 2),
        (round(b * factor), round(y * factor)),
        (abs(a - b), abs(x - y)),
        (sum([a, b, a]), x + y + x),
    ]:
        assert type(mine).__mro__[2] is type(plain)
        assert repr(mine) == repr(plain)
        assert evaluate(_with_sizes(mine.expression), numbers) == plain


class Silence:
    """Stands for a recorder that listens."""

    silent = False

    def module_path(self) -> str:
        return ""


def _with_sizes(expression: Any) -> Any:
    if not isinstance(expression, tuple):
        return expression
    head, *parts = expression
    return ("size", *parts) if head == "read" else (head, *map(_with_sizes, parts))


def test_a_size_that_is_followed_is_an_integer_to_all_others():
    log = SizeLog(Silence())
    size = log.read(Ref(0), 0, 3)
    assert isinstance(size, int)
    assert [1, 2, 3, 4][:size] == [1, 2, 3]
    assert {3: "three"}[size] == "three"
    assert f"{size:02d} {size!r}" == "03 3"
    assert json.dumps([size]) == "[3]"
    assert torch.arange(size).tolist() == np.arange(size).tolist() == [0, 1, 2]
    assert torch.zeros(size, 2).view(2, size).shape == (2, size)
    assert type(copy.deepcopy(size)) is type(pickle.loads(pickle.dumps(size))) is int


def test_a_batch_that_gives_other_pieces_is_refused():
    class Pieces(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            parts = [self.second(part) for part in self.first(x).split(40, 1)]
            first, second = x.chunk(2, dim=1)
            return torch.cat(parts, 1) + first.mean() + second.mean()

    graph = capture(seeded(Pieces()), torch.randn(2, 16, 6))
    assert refusal(graph, [torch.randn(2, 40, 6)]) == ""
    assert "ceil(x.size(1) / 40) == 1" in refusal(graph, [torch.randn(2, 41, 6)])
    assert "dimension 1 of 'x' is 1" in refusal(graph, [torch.randn(2, 1, 6)])


def test_what_sizes_of_one_and_more_cannot_break_is_no_guard():
    def decide(h: Tensor) -> bool:
        batch, length, width = h.shape
        assert batch > 0
        assert batch * length >= 1
        assert length + 1 != 0
        assert h.numel() == batch * length * width
        assert length % 4 < 4
        assert length // 3 >= 0
        assert length == h.flatten(0, 1).view(batch, -1, width).shape[1]
        return width == 6  # a size that may not vary

    graph = capture(seeded(Branches(decide)), torch.randn(2, 16, 6))
    rounded = {"x.size(1) // 3", "x.size(1) % 4"}  # seen at several values
    assert graph.guards == ()
    assert not any(text in note for note in graph.assumptions for text in rounded)


def test_of_many_bounds_the_tightest_is_kept():
    def decide(h: Tensor) -> bool:
        length = h.shape[1]
        return any(length > limit for limit in (900, 100, 500)) or length < 3

    graph = capture(seeded(Branches(decide)), torch.randn(2, 16, 6))
    assert [g.text for g in graph.guards] == ["x.size(1) <= 100", "x.size(1) >= 3"]


def test_a_branch_that_was_seen_both_ways_is_a_note():
    def decide(h: Tensor) -> bool:
        return h.shape[1] > 10 and h.shape[0] > 90  # 16, 7 and 32 were recorded

    graph = capture(seeded(Branches(decide)), torch.randn(2, 16, 6))
    assert [guard.text for guard in graph.guards] == ["x.size(0) <= 90"]
    (note,) = [text for text in graph.assumptions if "either way" in text]
    assert "x.size(1) > 10" in note
    assert "test_guards.py:" in note


def test_where_a_size_is_lost_is_a_note():
    graph = capture(
        seeded(Branches(lambda h: float(h.shape[1]) > 99)), torch.randn(2, 16, 6)
    )
    (note,) = [text for text in graph.assumptions if "plain number" in text]
    assert "test_guards.py:" in note


def test_branches_of_eval_mode_are_guards_too():
    class ByMode(toys.Toy):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if not self.training and x.shape[0] > 20:
                h = h * 2
            return self.second(h)

    graph = capture(seeded(ByMode()), torch.randn(2, 16, 6))
    assert [guard.text for guard in graph.guards] == ["x.size(0) <= 20"]


def test_torchs_own_functions_and_leaves_decide_for_themselves():
    """They run whole: their Python sees the size of the day."""

    class Leaf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -x if x.shape[1] > 40 else x

    class Holds(toys.Toy):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = Leaf()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            h = self.leaf(self.first(x))
            return self.second(self.attention(h, h, h)[0])

    graph = capture(seeded(Holds()), torch.randn(2, 16, 6), leaf=[Leaf])
    assert graph.guards == ()
    assert verify(graph, two_stages(graph, "first"), [torch.randn(2, 41, 6)]).ok


OTHERS = [(1, 16), (5, 16), (3, 7), (1, 24)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_library_models_refuse_no_other_sizes(name: str):
    graph = captured(name)
    adapter = batch_adapter(graph, emit(graph, _one_stage(graph)))
    for batch, length in OTHERS:
        adapter(
            {
                spec.name: torch.ones(batch, length, dtype=spec.dtype)
                for spec in graph.inputs
            }
        )


def _one_stage(graph: ModelGraph) -> Placement:
    nodes = [node for node in graph.graph.nodes if info(node).kind == "compute"]
    return Placement(stages=1, stage_of=dict.fromkeys(nodes, 0), block_of={})


def test_a_length_that_reaches_the_sliding_window_is_refused():
    """Below it, the library leaves the mask out: the recording has none."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, vocab_size=99,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=40,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MistralForCausalLM(config)
    tokens = torch.randint(0, 99, (2, 50), generator=torch.Generator().manual_seed(0))
    graph = capture(model, {"input_ids": tokens[:, :16]})
    placement = two_stages(graph, "model.layers.0.self_attn.q_proj")
    adapter = batch_adapter(graph, emit(graph, placement))
    adapter({"input_ids": tokens[:, :39]})
    assert verify(graph, placement, [tokens[:, :39]]).ok
    with pytest.raises(RuntimeGuardError, match=r"'input_ids' is 50, .*masking_utils"):
        adapter({"input_ids": tokens})
    assert not verify(graph, placement, [tokens]).ok
