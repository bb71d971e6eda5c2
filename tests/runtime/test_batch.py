"""Batches of every form become DeepSpeed's pair; strange ones are named."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.batch import BatchAdapter
from partitioner.runtime.inputs import InputConstant, InputLeaf
from partitioner.runtime.labels import LabelsLayout

IDS = torch.arange(6).reshape(2, 3)
MASK = torch.ones(2, 3)
LABELS = torch.zeros(2, 3, dtype=torch.int64)


def leaf(name: str, value: torch.Tensor, **fields: Any) -> InputLeaf:
    fields = {
        "parameter": name,
        "dtype": value.dtype,
        "shape": (None, *value.shape[1:]),
        **fields,
    }
    return InputLeaf(name=name, **fields)


def adapter(**fields: Any) -> BatchAdapter:
    leaves = (leaf("ids", IDS), leaf("mask", MASK), leaf("labels", LABELS))
    return BatchAdapter(**{"leaves": leaves, "first": (0, 1), "late": (2,), **fields})


def two_inputs(**fields: Any) -> BatchAdapter:
    leaves = (leaf("ids", IDS), leaf("mask", MASK))
    return BatchAdapter(**{"leaves": leaves, "first": (0, 1), **fields})


def one_input(**fields: Any) -> BatchAdapter:
    return BatchAdapter(**{"leaves": (leaf("x", MASK),), "first": (0,), **fields})


def targets(adapter: BatchAdapter, batch: Any) -> Any:
    """Return the labels as the loss function sees them."""
    _, labels = adapter(batch)
    assert isinstance(labels, tuple)
    assert all(isinstance(label, torch.Tensor) for label in labels)
    return adapter.labels.split(labels)[1]


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_mapping_is_matched_by_name_in_the_recorded_order(kind):
    batch = kind({"labels": LABELS, "mask": MASK, "ids": IDS})
    inputs, labels = adapter()(batch)
    assert inputs[0] is IDS
    assert inputs[1] is MASK
    assert labels == (LABELS,)
    assert targets(adapter(), batch) is None


def test_what_a_mapping_has_left_over_is_labels():
    only = {"ids": IDS, "mask": MASK, "target": LABELS}
    assert targets(two_inputs(), only) is LABELS
    several = targets(two_inputs(), {**only, "weight": 0.5})
    assert several == {"target": LABELS, "weight": 0.5}


@pytest.mark.parametrize(
    "inputs", [(IDS, MASK), [IDS, MASK], {"mask": MASK, "ids": IDS}]
)
@pytest.mark.parametrize("pair", [tuple, list])
def test_a_pair_is_inputs_and_labels(inputs, pair):
    made = two_inputs()
    first, labels = made(pair((inputs, {"a": LABELS, "b": [LABELS, None]})))
    assert first[0] is IDS
    assert first[1] is MASK
    assert len(labels) == 2
    assert made.labels.split(labels) == ((), {"a": LABELS, "b": [LABELS, None]})


def test_a_single_input_stays_bare():
    inputs, labels = one_input()(MASK)
    assert inputs is MASK
    assert labels == ()
    assert one_input()((MASK,))[0] is MASK
    assert targets(one_input(), (MASK, LABELS)) is LABELS


def test_two_tensors_are_both_inputs_where_the_model_takes_two():
    inputs, labels = two_inputs()((IDS, MASK))
    assert inputs[0] is IDS
    assert inputs[1] is MASK
    assert labels == ()


def test_late_inputs_come_before_the_users_labels():
    made = adapter()
    _, labels = made(({"ids": IDS, "mask": MASK, "labels": LABELS}, MASK))
    late, rest = made.labels.split(labels)
    assert late == (LABELS,)
    assert rest is MASK


def test_nested_arguments_are_found_by_path():
    leaves = (
        leaf("batch.ids", IDS, parameter="batch", path=("ids",)),
        leaf("batch.pair.1", MASK, parameter="batch", path=("pair", 1)),
    )
    made = BatchAdapter(leaves=leaves, first=(0, 1))
    argument = {"ids": IDS, "pair": [None, MASK]}
    for batch in (argument, {"batch": argument}, (argument, LABELS)):
        inputs, _ = made(batch)
        assert inputs[0] is IDS
        assert inputs[1] is MASK


def test_constants_must_be_what_they_were():
    made = two_inputs(constants=(InputConstant(parameter="return_dict", value=True),))
    batch = {"ids": IDS, "mask": MASK}
    assert targets(made, {**batch, "return_dict": True}) is None
    assert made(batch)[0][0] is IDS
    assert made((IDS, MASK))[0][0] is IDS
    with pytest.raises(RuntimeGuardError, match=r"'return_dict' is False; .* True"):
        made({**batch, "return_dict": False})


def test_floating_inputs_are_cast():
    leaves = (leaf("ids", IDS), leaf("mask", MASK.bfloat16()))
    made = two_inputs(leaves=leaves, floating=torch.bfloat16)
    inputs, labels = made(((IDS, MASK), MASK))
    assert [tensor.dtype for tensor in inputs] == [torch.int64, torch.bfloat16]
    assert labels[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"ids": IDS, "labels": LABELS}, "lacks the input 'mask'; it has ids, labels"),
        (
            {"ids": IDS, "mask": None, "labels": LABELS},
            "'mask' is None, not a tensor",
        ),
        (
            {"ids": IDS.int(), "mask": MASK, "labels": LABELS},
            "'ids' has dtype torch.int32; the plan has torch.int64",
        ),
        (
            {"ids": IDS, "mask": MASK[0], "labels": LABELS},
            r"'mask' has shape \(3,\); the plan has \(None, 3\)",
        ),
        (
            {"ids": IDS, "mask": MASK[:, :2], "labels": LABELS},
            r"'mask' has shape \(2, 2\)",
        ),
        ((IDS, MASK, LABELS, LABELS), "a batch is a tuple of 4; .* ids, mask, labels"),
        (IDS, "a batch is a tensor of torch.int64"),
        ("text", "a batch is 'text'"),
    ],
)
def test_strange_batches_are_refused_by_name(batch, message):
    with pytest.raises(RuntimeGuardError, match=message):
        adapter()(batch)


def test_labels_without_the_adapter_pass_through_unless_the_loss_needs_inputs():
    assert LabelsLayout().split(LABELS) == ((), LABELS)
    with pytest.raises(RuntimeGuardError, match="set_batch_fn"):
        LabelsLayout(late=1).split(LABELS)


def test_labels_of_another_number_are_refused():
    made = adapter()
    made({"ids": IDS, "mask": MASK, "labels": LABELS})
    with pytest.raises(RuntimeGuardError, match=r"got 2 tensors as labels; .* made 1"):
        made.labels.split((LABELS, LABELS))


def test_an_input_that_the_recording_ran_without_is_refused():
    made = two_inputs(absent={"positions": None, "labels": None, "causal": False})
    batch = {"ids": IDS, "mask": MASK}
    extra = {**batch, "positions": IDS}
    for given in (extra, (extra, LABELS)):
        with pytest.raises(RuntimeGuardError, match=r"'positions' is a tensor.*None"):
            made(given)
    with pytest.raises(RuntimeGuardError, match=r"'causal' is True; .* False"):
        made({**batch, "causal": True})
    assert made({**batch, "positions": None, "causal": False})[1] == ()
    assert targets(made, {**batch, "labels": LABELS}) is LABELS
    assert targets(made, {**batch, "weight": LABELS}) is LABELS  # the loss's own
