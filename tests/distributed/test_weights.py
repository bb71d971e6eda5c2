"""Every rank reads or makes the weights of its own stage, and holds no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from partitioner import InitialWeights
from tests.distributed.launch import launch
from tests.distributed.parity import Case
from tests.distributed.weights import LAYERS, build_and_measure, train_from, wide
from tests.models import MODELS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]

STAGES = 4
TIMEOUT_S = 500.0
MOST_GROWTH = 1.2
"""What a rank's memory may grow by, in its own share of the weights."""


def test_a_rank_never_holds_more_than_its_share(tmp_path: Path):
    model = wide()
    whole = sum(p.numel() * p.itemsize for p in model.parameters())
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    sources = [tmp_path, tmp_path / "model.pt", InitialWeights(seed=0)]
    ranks = launch(STAGES, build_and_measure, sources, STAGES, timeout_s=TIMEOUT_S)
    for source, built in zip(sources, zip(*ranks, strict=True), strict=True):
        assert not any(rank.error for rank in built)
        assert sum(rank.own for rank in built) == whole
        for rank in built:
            assert rank.own < whole / 3
            assert rank.own * 0.8 <= rank.peak <= MOST_GROWTH * rank.own
        sums = {name: value for rank in built for name, value in rank.sums.items()}
        assert len(set(sums.values())) == 2 * LAYERS  # no two layers are equal
        if not isinstance(source, InitialWeights):
            for name, parameter in model.named_parameters():
                assert sums[name] == parameter.double().sum().item()


@pytest.mark.parametrize(
    ("ranks", "schedule"), [(2, "1f1b"), (3, "1f1b"), (2, "dualpipev")]
)
def test_training_from_meta_and_files_is_training_the_loaded_model(
    ranks: int, schedule: str, tmp_path: Path
):
    """Bit for bit; and a file that one rank cannot read fails all, who then go on."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        MODELS["gpt2"].model(dropout=0.0).save_pretrained(  # type: ignore[operator]
            folder, max_shard_size="40KB"
        )
    spoil(bad, "transformer.h.3.mlp.c_proj.weight")
    case = Case(model="gpt2", stages=ranks, steps=3)
    sources = [None, bad, good]
    outcomes = launch(ranks, train_from, case, sources, schedule, timeout_s=TIMEOUT_S)
    for loaded, failed, read in outcomes:
        assert "WeightsError: building the stages failed on rank" in failed.error
        assert f"(1 of {ranks} ranks failed)" in failed.error
        assert "cannot read 'transformer.h." in failed.error
        assert str(bad) in failed.error
        assert read.losses == loaded.losses
        assert len(read.losses) == case.steps
        assert read.before.keys() == loaded.before.keys()
        for name, value in loaded.before.items():
            assert torch.equal(read.before[name], value), name
        for name, value in loaded.after.items():
            assert torch.equal(read.after[name], value), name
        moved = [n for n, v in read.after.items() if not torch.equal(v, read.before[n])]
        assert moved, "nothing was trained: nothing was tested"


def spoil(folder: Path, key: str) -> None:
    """Cut the shard short that holds a tensor."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"][key]
    shard.write_bytes(shard.read_bytes()[:-8])
