"""A LightningModule on stages next to the same Trainer in one process."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.distributed.launch import launch
from tests.distributed.lightning_gpt2 import fit_gpt2
from tests.distributed.lightning_runs import (
    Fit,
    Fitted,
    divided_by_rank,
    fit,
    fit_all,
    weights_alone,
)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(400)]

BOUND = 5e-6


def check(found: Fitted, expected: Fitted, bound: float = BOUND) -> None:
    """Compare everything that a user sees."""
    assert found.steps == expected.steps
    assert found.epochs == expected.epochs
    assert found.rates == expected.rates
    assert found.losses == pytest.approx(expected.losses, rel=bound)
    assert found.validated == pytest.approx(expected.validated, rel=bound)
    assert found.logged == pytest.approx(expected.logged, rel=bound)
    assert found.tested == pytest.approx(expected.tested, rel=bound)
    for mine, theirs in zip(found.outputs, expected.outputs, strict=True):
        assert mine[0] == theirs[0]
        assert mine[1] == pytest.approx(theirs[1], rel=bound)
    assert found.state.keys() == expected.state.keys()
    for name, value in expected.state.items():
        torch.testing.assert_close(found.state[name], value, rtol=0, atol=bound)


def rows(folder: Path) -> list[dict[str, float]]:
    """Return what CSVLogger wrote."""
    with (folder / "metrics.csv").open() as file:
        return [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
        ]


def curves(folder: Path) -> dict[str, list[float]]:
    """Return what TensorBoard would draw."""
    events = EventAccumulator(str(folder / "logs")).Reload()
    return {
        name: [n for each in events.Scalars(name) for n in (each.step, each.value)]
        for name in events.Tags()["scalars"]
    }


def test_two_stages_do_what_one_process_does(tmp_path):
    folder = str(tmp_path)
    runs = [
        Fit(),
        Fit(
            library="lightning.pytorch", folder=folder, optimizer="adamw",
            shuffle=True, logger="CSVLogger",
            trainer={
                "limit_train_batches": 3, "limit_val_batches": 2,
                "gradient_clip_val": 0.3,
            },
        ),
        Fit(
            early=True, folder=f"{folder}/early", logger="TensorBoardLogger",
            trainer={"max_epochs": 6, "val_check_interval": 2},
        ),
    ]  # fmt: skip
    expected = [fit(run, piped=False) for run in runs]
    # Each shows what it is there for.
    plain, csv_run, early = expected
    assert len(set(plain.rates)) > 1
    assert (csv_run.steps, plain.steps) == (6, 8)
    assert early.epochs < 6
    assert plain.logged["seen"] == 30
    half = Fit(optimizer="sgd", trainer={"precision": "bf16-true"})
    ranks = launch(2, fit_all, [*runs, half])
    for *found, rounded in ranks:
        for mine, theirs in zip(found, expected, strict=True):
            check(mine, theirs)
        # The optimizer keeps fp32 copies, so it is float32 that bf16 stays close to.
        assert {each.dtype for each in rounded.state.values()} == {torch.bfloat16}
        assert rounded.losses == pytest.approx(plain.losses, rel=2**-6)
        assert rounded.losses != plain.losses
    first, second = (rank[0].printed for rank in ranks)
    assert "loss_step" in first
    assert "val_loss" in first
    assert "4/4" in first
    assert "4/4" not in second
    logged = rows(tmp_path / "piped" / "logs")
    assert {"loss_step", "loss_epoch", "right", "val_loss"} <= set().union(*logged)
    by_one_process = rows(tmp_path / "alone" / "logs")
    assert logged == [pytest.approx(row, rel=BOUND) for row in by_one_process]
    piped, single = (curves(tmp_path / "early" / side) for side in ("piped", "alone"))
    assert piped.keys() == single.keys() >= {"loss_step", "val_loss", "epoch"}
    for name, values in single.items():
        assert piped[name] == pytest.approx(values, rel=BOUND)


def test_a_run_is_resumed_on_other_stages_and_from_a_single_process(tmp_path):
    saved = Fit(optimizer="adamw", folder=str(tmp_path / "saved"))
    alone = fit(saved, piped=False)
    piped = launch(2, fit_all, [saved])[0][0]
    longer = replace(saved, folder=str(tmp_path / "longer"), trainer={"max_epochs": 4})
    resumed = replace(longer, resume=alone.checkpoint)
    expected = fit(resumed, piped=False)
    assert expected.steps == 16
    assert len(expected.losses) == 8

    by_pipeline = replace(longer, resume=piped.checkpoint)
    assert Path(piped.checkpoint).is_dir()
    assert Path(alone.checkpoint).is_file()
    for rank in launch(2, fit_all, [by_pipeline, resumed]):
        for found in rank:
            check(found, expected)
    on_three = replace(by_pipeline, stages=3)
    for rank in launch(3, fit_all, [on_three]):
        check(rank[0], expected)


def test_replicas_share_out_the_batches():
    run = Fit(batch_size=4)
    expected = fit(replace(run, batch_size=8, sampler=True), piped=False)
    zero = {"zero_stage": 1}
    for rank in launch(4, fit_all, [run, replace(run, strategy=zero)]):
        for found in rank:
            assert found.steps == expected.steps
            assert found.losses == pytest.approx(expected.losses, rel=BOUND)
            for name, value in expected.state.items():
                torch.testing.assert_close(found.state[name], value, rtol=0, atol=BOUND)


def weights_and_refusal(folder: str) -> tuple[tuple[bool, bool], str]:
    return weights_alone(folder), divided_by_rank()


def test_weights_alone_are_files_and_every_rank_must_load_the_same(tmp_path):
    for files, refused in launch(2, weights_and_refusal, str(tmp_path)):
        assert files == (True, True)
        assert "rank 1 gets another batch" in refused


def gpt2_on_stages() -> tuple[list[float], dict[str, float]]:
    return fit_gpt2(piped=True)


def test_a_hugging_face_model_averages_over_tokens():
    losses, logged = fit_gpt2(piped=False)
    assert {"val_0/dataloader_idx_0", "val_1/dataloader_idx_1"} <= logged.keys()
    for found in launch(2, gpt2_on_stages):
        assert found[0] == pytest.approx(losses, rel=BOUND)
        assert found[1] == pytest.approx(logged, rel=BOUND)
