"""Guards at run time: sizes by shape, parameters before the first batch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from partitioner.errors import RuntimeGuardError
from partitioner.runtime.batch import BatchAdapter
from partitioner.runtime.guards import SizeGuard, WeightGuards, check_guards
from partitioner.runtime.inputs import InputLeaf


def guard(relation: str, left: Any, right: Any) -> SizeGuard:
    return SizeGuard(
        relation=relation,
        left=left,
        right=right,
        text="the text",
        module="encoder",
        source="model.py:12",
    )


BATCH, LENGTH = ("size", 0), ("size", 1)
NAMES = ["dimension 0 of 'x'", "dimension 1 of 'x'"]


@pytest.mark.parametrize(
    ("relation", "left", "right", "holds", "breaks"),
    [
        ("<=", LENGTH, 512, (2, 512), (2, 513)),
        ("==", ("%", LENGTH, 4), 0, (2, 8), (2, 9)),
        ("!=", ("*", BATCH, LENGTH), 12, (3, 5), (3, 4)),
        ("==", ("loops", 0, LENGTH, 64), 1, (1, 64), (1, 65)),
        (">", ("/", LENGTH, BATCH), 1.5, (2, 4), (2, 3)),
        ("==", ("//", 12, ("-", LENGTH, 4)), 4, (1, 7), (1, 4)),  # divides by zero
    ],
)
def test_a_guard_is_what_python_would_say(relation, left, right, holds, breaks):
    made = pickle.loads(pickle.dumps(guard(relation, left, right)))
    check_guards([made], holds, NAMES)
    with pytest.raises(RuntimeGuardError) as caught:
        check_guards([made], breaks, NAMES)
    message = str(caught.value)
    assert f"dimension 1 of 'x' is {breaks[1]}" in message
    assert "the text (model.py:12, in encoder)" in message


def test_shapes_are_checked_once(monkeypatch):
    leaf = InputLeaf(name="x", parameter="x", dtype=torch.float32, shape=(None, None))
    adapter = BatchAdapter(
        leaves=(leaf,),
        first=(0,),
        free_sizes=(((0, 0),), ((0, 1),)),
        guards=(guard("<=", LENGTH, 8),),
    )
    for _ in range(2):
        with pytest.raises(RuntimeGuardError, match="dimension 1 of 'x' is 9"):
            adapter(torch.zeros(2, 9))
    adapter(torch.zeros(2, 8))

    def fail(self, sizes):
        raise AssertionError

    monkeypatch.setattr(SizeGuard, "holds", fail)
    adapter(torch.ones(2, 8))
    with pytest.raises(AssertionError):
        adapter(torch.zeros(3, 8))


def test_parameters_run_in_the_dtype_of_the_recording():
    model = nn.Linear(2, 2)
    dtypes = {"weight": torch.bfloat16, "bias": torch.bfloat16}
    guards = WeightGuards(dtypes=dtypes)
    with pytest.raises(RuntimeGuardError) as caught:
        guards.check(model.named_parameters())
    message = str(caught.value)
    assert "'weight' runs in torch.float32" in message
    assert "recorded with torch.bfloat16" in message
    assert "plan.ds_config()" in message
    guards.check(model.to(torch.bfloat16).named_parameters())


def test_the_kind_of_device_matters_where_python_asked_for_it():
    parameters = list(nn.Linear(2, 2, device="meta").named_parameters())
    WeightGuards().check(parameters)
    asked = WeightGuards(device_reads=("is_cuda is False, model.py:7",))
    with pytest.raises(RuntimeGuardError, match=r"run on meta, .*model\.py:7"):
        asked.check(parameters)
