"""The plan's engine does in several processes what one process does."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.engine_cases import CASES, VOCABULARY
from tests.distributed.launch import launch
from tests.distributed.scripts import alone, engine_of, on_stages

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

BY_SHAPE = {
    (2, 1): list(CASES),
    (3, 1): ["changing", "changing-bubble", "tempered-bubble", "tempered-clipped"],
    (2, 2): [
        "changing",
        "changing-bubble",
        "tempered-zero",
        "weighted",
        "weighted-causal",
    ],
}
MICRO_BATCHES = 4
RUNS = [
    (*shape, name)
    for shape, names in BY_SHAPE.items()
    for name in names
    if "bf16" not in name
]


def run_all(names: list[str], stages: int) -> dict[str, Any]:
    ran = on_stages([CASES[name]() for name in names], stages)
    return {**dict(zip(names, ran, strict=True)), "read": read_by_loader(stages)}


def read_by_loader(stages: int) -> tuple[list[list[int]], dict[str, Any], float]:
    """Train by the engine's loader: what this rank read, where it is, its last loss."""
    engine = engine_of(CASES["changing"](), stages)
    read: list[list[int]] = []

    def watched(batch: Any) -> Any:
        read.append(batch[0][:, 0].tolist())
        return adapter(batch)

    adapter = engine.batch_fn
    engine.set_batch_fn(watched)
    loader = engine.dataloader(Numbered(), seed=1)
    for _ in range(2):
        batches = iter(loader)
        for _ in range(len(loader) // MICRO_BATCHES):
            loss = engine.train_batch(batches).item()
    return read, loader.state_dict(), loss


class Numbered:
    """Samples that begin with their own number, in rows of other random tokens."""

    def __len__(self) -> int:
        return VOCABULARY

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, VOCABULARY, (7,))
        ids[0] = index
        return ids, ids


@functools.cache
def ranks(stages: int, replicas: int) -> list[dict[str, Any]]:
    """Run all scripts of a shape, once, in one process group."""
    names = BY_SHAPE[stages, replicas]
    return launch(stages * replicas, run_all, names, stages, timeout_s=300.0)


def close(found: Any, expected: Any) -> None:
    wanted = torch.as_tensor(expected)
    torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("stages", "replicas", "name"), RUNS)
def test_losses_norms_and_parameters_equal_one_process(stages, replicas, name):
    expected = alone(CASES[name](), replicas)
    seen = set()
    for rank, ran in enumerate(each[name] for each in ranks(stages, replicas)):
        for done, wanted in zip(ran.steps, expected.steps, strict=True):
            if wanted.loss is None:
                continue
            if isinstance(wanted.loss, list):  # of this replica's micro-batches alone
                count = len(wanted.loss) // replicas
                first = rank % replicas * count
                close(done.loss, wanted.loss[first : first + count])
            else:
                close(done.loss, wanted.loss)
            if wanted.norm is not None:
                assert isinstance(done.norm, float)
                close(done.norm, wanted.norm)
            assert done.additional.keys() == wanted.additional.keys()
            for key, value in wanted.additional.items():
                close(done.additional[key], value)
        for key, tensor in ran.state.items():
            close(tensor, expected.state[key])
            seen.add(key)
    assert seen == set(expected.state)


def test_bf16_with_zero_reports_one_norm_on_all_ranks():
    name = "tempered-bf16-zero"
    expected = [done.norm for done in alone(CASES[name]()).steps if done.norm]
    first, last = ([d.norm for d in each[name].steps if d.norm] for each in ranks(2, 1))
    assert first == last
    # float32's norms; bfloat16 keeps eight bits.
    assert first == pytest.approx(expected, rel=2.0**-6)


@pytest.mark.parametrize(("stages", "replicas"), [(3, 1), (2, 2)])
def test_both_ends_read_the_same_and_replicas_share_the_data_out(stages, replicas):
    everywhere = [each["read"] for each in ranks(stages, replicas)]
    read, places, losses = zip(*everywhere, strict=True)
    assert read[:replicas] == read[-replicas:]
    assert not any(itertools.chain(*read[replicas:-replicas]))
    steps = VOCABULARY // (3 * MICRO_BATCHES * replicas)
    for epoch in range(2):
        part = slice(epoch * steps * MICRO_BATCHES, (epoch + 1) * steps * MICRO_BATCHES)
        seen = [
            number for rank in read[:replicas] for rows in rank[part] for number in rows
        ]
        assert len(seen) == len(set(seen)) == steps * 3 * MICRO_BATCHES * replicas
    assert read[0][: len(read[0]) // 2] != read[0][len(read[0]) // 2 :]
    assert all(place == places[0] for place in places)
    assert len(set(losses)) == 1


@pytest.mark.parametrize(("stages", "replicas"), list(BY_SHAPE))
def test_the_last_stage_returns_the_model_s_own_outputs(stages, replicas):
    expected = alone(CASES["changing"](), replicas)
    for rank, each in enumerate(ranks(stages, replicas)):
        for done, wanted in zip(each["changing"].steps, expected.steps, strict=True):
            if rank < (stages - 1) * replicas or done.outputs is None:
                assert done.outputs is None
                continue
            outputs = (
                [done.outputs] if isinstance(done.outputs, tuple) else done.outputs
            )
            assert len(outputs) == len(wanted.outputs)
            if rank % replicas == 0:  # the reference keeps the first replica's
                for mine, output in zip(outputs, wanted.outputs, strict=True):
                    assert isinstance(mine, tuple)
                    for value, its in zip(mine, output, strict=True):
                        close(value, its)
