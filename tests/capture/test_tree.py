"""Nested values: walked, copied, taken apart and put together again."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from partitioner.capture.records import Ref
from partitioner.capture.tree import (
    Opaque,
    flatten,
    is_plain,
    map_tree,
    rebuild,
    relabel,
    template,
    tensor_paths,
    trees_differ,
)

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    value: Any
    other: Any = None


VALUES = [
    1,
    (1, [2, {"a": 3}], None),
    Pair(1, (2, 3)),
    OrderedDict(b=1, a=2),
    Record(value=[1, 2], other="text"),
    torch.return_types.max((torch.ones(1), torch.zeros(1))),
    [],
    {},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_template_rebuilds_what_it_was_made_of(value: Any):
    again = rebuild(template(value, lambda leaf: leaf), lambda leaf: leaf)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", VALUES[:4], ids=lambda value: type(value).__name__)
def test_map_tree_keeps_containers(value: Any):
    assert map_tree(lambda leaf: leaf, value) == value


def test_hugging_face_outputs_keep_their_class_and_order():
    from transformers.modeling_outputs import CausalLMOutput

    output = CausalLMOutput(loss=torch.ones(()), logits=torch.zeros(2))
    paths = [path for path, _ in flatten(output)]
    assert paths == [(("item", "loss"),), (("item", "logits"),)]
    again = rebuild(template(output, lambda leaf: leaf), lambda leaf: leaf)
    assert type(again) is CausalLMOutput
    assert again.loss is output.loss
    assert again.hidden_states is None


def test_slices_are_mapped_inside():
    assert map_tree(lambda leaf: leaf and leaf + 1, slice(1, None, 2)) == slice(
        2, None, 3
    )


def test_opaque_leaves_become_none():
    made = template(
        [object(), 1], lambda leaf: leaf if is_plain(leaf) else Opaque(leaf)
    )
    assert rebuild(made, lambda leaf: leaf) == [None, 1]


def test_relabel_changes_leaves_alone():
    made = relabel(template((1, [2]), lambda leaf: leaf), lambda leaf: leaf * 10)
    assert rebuild(made, lambda leaf: leaf) == (10, [20])


def test_tensor_paths_say_where_references_are():
    made = template({"a": ["tensor", 1], "b": None}, lambda leaf: leaf)
    marked = relabel(made, lambda leaf: Ref(3) if leaf == "tensor" else leaf)
    assert tensor_paths(marked) == [((("item", "a"), ("item", 0)), Ref(3))]


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ((1, 2), (1, 2), False),
        ((1, 2), [1, 2], True),
        ((1, 2), (1, 3), True),
        ({"a": 1}, {"b": 1}, True),
        (1, True, True),
        (float("nan"), float("nan"), False),
    ],
)
def test_trees_differ(first: Any, second: Any, differ: bool):
    pair = [template(value, lambda leaf: leaf) for value in (first, second)]
    assert trees_differ(*pair) is differ
