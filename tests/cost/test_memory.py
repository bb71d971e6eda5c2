from __future__ import annotations

import pytest
import torch

from partitioner.cost.memory import OPTIMIZER_STATES, Engine
from partitioner.cost.weights import Weight
from partitioner.errors import OptionError

NUMEL = 1000


def weight(itemsize: int, *, trainable: bool = True) -> Weight:
    return Weight(
        name="w",
        numel=NUMEL,
        itemsize=itemsize,
        is_parameter=True,
        trainable=trainable,
    )


@pytest.mark.parametrize(
    ("dtype", "optimizer", "held", "step"),
    [
        (torch.float32, "adamw", 16, 4),
        (torch.float32, "sgd-momentum", 12, 0),
        (torch.float32, "sgd", 8, 0),
        (torch.bfloat16, "adamw", 18, 8),
        (torch.bfloat16, "sgd", 10, 4),
        (torch.float16, "adamw", 16, 8),
    ],
)
def test_bytes_of_one_element(dtype, optimizer, held, step):
    engine = Engine(dtype=dtype, optimizer=optimizer)
    assert engine.held([weight(dtype.itemsize)]) == held * NUMEL
    assert engine.step([weight(dtype.itemsize)]) == step * NUMEL


@pytest.mark.parametrize("optimizer", OPTIMIZER_STATES)
def test_what_is_frozen_is_its_weight_alone(optimizer):
    engine = Engine(dtype=torch.bfloat16, optimizer=optimizer)
    frozen = weight(2, trainable=False)
    assert engine.held([frozen, frozen]) == 2 * 2 * NUMEL
    assert engine.step([frozen]) == 0


def test_names_are_read_leniently_and_unknown_ones_refused():
    lenient = Engine(dtype=torch.float32, optimizer="SGD_momentum")
    assert lenient.held([weight(4)]) == 12 * NUMEL
    with pytest.raises(OptionError, match="adagrad"):
        Engine(dtype=torch.float32, optimizer="adagrad")
