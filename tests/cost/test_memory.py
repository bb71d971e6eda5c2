from __future__ import annotations

import pytest

from partitioner.cost.memory import OPTIMIZER_STATES, static_bytes
from partitioner.errors import OptionError

NUMEL = 1000


@pytest.mark.parametrize(
    ("optimizer", "per_element"),
    [("adamw", 16), ("adam", 16), ("sgd-momentum", 12), ("sgd", 8)],
)
def test_float32_holds_weight_gradient_and_states(optimizer, per_element):
    found = static_bytes(NUMEL, 4, trainable=True, optimizer=optimizer)

    assert found == per_element * NUMEL


@pytest.mark.parametrize(("optimizer", "per_element"), [("adamw", 20), ("sgd", 12)])
def test_half_types_hold_a_float32_master_and_gradient_too(optimizer, per_element):
    found = static_bytes(NUMEL, 2, trainable=True, optimizer=optimizer)

    assert found == per_element * NUMEL


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZER_STATES)
def test_what_is_frozen_is_its_weight_alone(itemsize, optimizer):
    found = static_bytes(NUMEL, itemsize, trainable=False, optimizer=optimizer)

    assert found == itemsize * NUMEL


def test_names_are_read_leniently_and_unknown_ones_refused():
    assert static_bytes(
        NUMEL, 4, trainable=True, optimizer="SGD_momentum"
    ) == static_bytes(NUMEL, 4, trainable=True, optimizer="sgd-momentum")
    with pytest.raises(OptionError, match="adagrad"):
        static_bytes(NUMEL, 4, trainable=False, optimizer="adagrad")
