"""Two stages on two replicas stop, and go on as they were, or on any other grid."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from partitioner.runtime.checkpoint.export import export
from partitioner.runtime.checkpoint.folders import CheckpointFolder
from tests.distributed.launch import launch
from tests.distributed.resuming import Outcome, Run, build, train, whole

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

RUNS = {
    "fp32": Run(optimizer="adamw"),
    "bf16-zero1": Run(optimizer="adamw", bf16=True, zero=1),
}
STEPS, SAVED = 6, 3
GRIDS = {
    "2 x 2": (2, 2),
    "4 x 1": (4, 1),
    "1 x 4": (1, 4),
    "3 x 1": (3, 1),
    "2 x 1": (2, 1),
}
"""Stages and replicas that a run goes on with."""
TOLERANCE = {"fp32": 1e-6, "bf16-zero1": 2**-8}
"""On another grid sums round in another order; on its own a run goes on bit by bit."""
CHANGES = [(name, grid) for name in RUNS for grid in GRIDS]


def saved(root: Path) -> dict[str, Outcome]:
    """Train two stages on two replicas to the end, saved on the way and at the end."""
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    return {
        name: train(
            run, STEPS, save={SAVED: (root, name), STEPS: (root, f"{name} done")}
        )
        for name, run in RUNS.items()
    }


def resumed(root: Path, grids: list[str]) -> dict[str, dict[str, Outcome]]:
    logging.getLogger("partitioner").setLevel(logging.ERROR)
    return {
        grid: {
            name: train(replace(run, stages=GRIDS[grid][0]), STEPS, load=(root, name))
            for name, run in RUNS.items()
        }
        for grid in grids
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def first(root) -> list[dict[str, Outcome]]:
    return launch(4, saved, root, timeout_s=200)


@pytest.fixture(scope="module")
def later(root, first) -> dict[str, list[dict[str, Outcome]]]:
    by_world: dict[int, list[str]] = {}
    for grid, (stages, replicas) in GRIDS.items():
        by_world.setdefault(stages * replicas, []).append(grid)
    found = {}
    for world, grids in by_world.items():
        ranks = launch(world, resumed, root, grids, timeout_s=200)
        for grid in grids:
            found[grid] = [rank[grid] for rank in ranks]
    return found


def trained(ranks: list[dict[str, Outcome]], name: str) -> dict[str, Tensor]:
    """Join what is trained; each replica has statistics of its own batches."""
    state = whole([rank[name] for rank in ranks])
    return {n: t for n, t in state.items() if "running" not in n and "batches" not in n}


@pytest.mark.parametrize(("name", "grid"), CHANGES)
def test_losses_and_weights_go_on_as_if_nothing_had_stopped(first, later, name, grid):
    before = first[0][name].losses
    assert len(before) == STEPS
    ranks, tolerance = later[grid], TOLERANCE[name] if grid != "2 x 2" else 0.0
    for rank in ranks:
        assert rank[name].losses == pytest.approx(before[SAVED:], abs=tolerance)
    expected, found = trained(first, name), trained(ranks, name)
    assert expected.keys() == found.keys()
    for key, value in found.items():
        difference = (value.double() - expected[key].double()).abs().max().item()
        assert difference <= tolerance, key


@pytest.mark.parametrize("name", RUNS)
def test_replicas_hold_the_same_weights(first, name):
    for one, other in ((0, 1), (2, 3)):
        mine, theirs = (trained([first[rank]], name) for rank in (one, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[key]) for key, value in mine.items())


@pytest.mark.parametrize("name", RUNS)
def test_the_end_is_exported_as_it_was_trained(root, first, tmp_path, name):
    export(CheckpointFolder(root, f"{name} done"), tmp_path / "out")
    model = build(RUNS[name])
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    for key, value in trained(first, name).items():
        assert torch.equal(model.state_dict()[key].to(value.dtype), value), key
