"""On GPUs, over NCCL, everything is as in one process, as gloo shows it on CPU."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import engines
from tests.distributed.engines import ENGINES, train_original
from tests.distributed.gpus import needs_two_gpus, on_two_gpus
from tests.distributed.two_gpus_stage import ENGINES_ON_GPUS, RESUMED, SAVED, WEIGHTS
from tests.models import MODELS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), needs_two_gpus]

TOLERANCE = 1e-5
"""float32 on a GPU against float32 on a CPU: both sum in orders of their own."""
BF16_TOLERANCE = 3e-2
"""bfloat16 has 8 bits: compared with float32, an error of 2**-8 for each value."""


@functools.cache
def trained() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        MODELS["gpt2"].model(dropout=0.0).save_pretrained(  # type: ignore[operator]
            Path(folder) / WEIGHTS, max_shard_size="40KB"
        )
        return on_two_gpus("tests.distributed.two_gpus_stage", Path(folder), 500.0)


@pytest.mark.parametrize("name", ENGINES_ON_GPUS)
def test_every_engine_trains_as_the_original(name: str):
    expected = train_original(1, ENGINES[name])
    tolerance = BF16_TOLERANCE if name.startswith("bf16") else TOLERANCE
    held = set()
    for rank in trained():
        assert rank["backend"] == "nccl"
        found = rank["engines"][ENGINES_ON_GPUS.index(name)]
        assert found["losses"] == pytest.approx(expected.losses, rel=tolerance)
        assert found["evaluated"] == pytest.approx(expected.evaluated, rel=tolerance)
        if any(found["norms"]):  # in plain fp32 DeepSpeed does not say
            assert found["norms"] == pytest.approx(expected.norms, rel=tolerance)
        for key, value in found["state"].items():
            difference = (value.cpu() - expected.state[key]).abs().max().item()
            assert difference <= tolerance, key
            held.add(key)
    assert held == set(expected.state)
    if "clip" in name:
        assert min(expected.norms) > 2 * engines.CLIPPING


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_is_the_run_that_never_stopped(name: str):
    for rank in trained():
        whole, resumed = rank["checkpoints"][name]
        assert resumed["losses"] == whole["losses"][SAVED:]
        assert len(set(whole["losses"])) == len(whole["losses"])
        for key, value in whole["state"].items():
            assert torch.equal(resumed["state"][key], value), key


def test_training_from_files_is_training_the_loaded_model():
    for rank in trained():
        loaded, read = rank["weights"]
        assert not read["error"]
        assert read["losses"] == loaded["losses"]
        for key, value in loaded["after"].items():
            assert torch.equal(read["after"][key], value), key
