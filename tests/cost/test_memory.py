from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from partitioner.cost.memory import OPTIMIZER_STATES, REDUCE_BUCKET, Engine
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
        (torch.float32, "sgd-momentum", 12, 4),
        (torch.float32, "sgd", 8, 4),
        (torch.bfloat16, "adamw", 16, 8),
        (torch.bfloat16, "sgd", 8, 4),
        (torch.float16, "adamw", 16, 8),
    ],
)
def test_bytes_of_one_element(dtype, optimizer, held, step):
    engine = Engine(dtype=dtype, optimizer=optimizer)
    assert engine.held([weight(dtype.itemsize)]) == held * NUMEL
    assert engine.step([weight(dtype.itemsize)]) == step * NUMEL


@pytest.mark.parametrize(
    ("dtype", "zero", "kinds", "step"),
    [
        (torch.float32, 0, (4, 4, 0, 8), 4),
        (torch.bfloat16, 0, (2, 2, 1, 2), 2),  # shared even so
        (torch.float16, 0, (2, 2, 4, 8), 8),
        (torch.float32, 1, (4, 4, 1, 2), 1),
        (torch.bfloat16, 1, (2, 2, 1, 2), 0.5),
        (torch.float16, 1, (2, 2, 1, 2), 0.5),
    ],
)
def test_four_replicas_share_what_deepspeed_shares(dtype, zero, kinds, step):
    engine = Engine(dtype=dtype, optimizer="adamw", zero_stage=zero, replicas=4)
    found = engine.by_kind([weight(dtype.itemsize)])
    assert tuple(asdict(found).values()) == tuple(kind * NUMEL for kind in kinds)
    assert engine.held([weight(dtype.itemsize)]) == sum(kinds) * NUMEL
    assert engine.step([weight(dtype.itemsize)]) == step * NUMEL


def test_bfloat16_gradients_of_one_micro_batch_come_and_go():
    engine = Engine(dtype=torch.bfloat16, optimizer="adamw")
    assert engine.passing([weight(2), weight(2, trainable=False)]) == 2 * NUMEL
    assert replace(engine, zero_stage=1).passing([weight(2)]) == 0
    assert replace(engine, dtype=torch.float32).passing([weight(4)]) == 0


def test_what_is_offloaded_leaves_weights_gradients_and_a_buffer():
    engine = Engine(
        dtype=torch.bfloat16, optimizer="adamw", zero_stage=1, offload_optimizer=True
    )
    plain = replace(engine, offload_optimizer=False)
    assert engine.held([weight(2)]) == 4 * NUMEL
    assert engine.step([weight(2)]) == 0
    largest = engine.buffer_bytes([weight(2), weight(2)])
    assert largest - plain.buffer_bytes([weight(2), weight(2)]) == 2 * NUMEL
    assert plain.buffer_bytes([]) == 2 * 2 * REDUCE_BUCKET
    assert replace(plain, zero_stage=0).buffer_bytes([weight(2)]) == 0


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
