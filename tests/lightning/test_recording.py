"""A step is recorded under the module's own names; what would go stale is refused."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from torch import nn

from partitioner.errors import OptionError
from partitioner.lightning.batches import BatchLayout
from partitioner.lightning.checks import (
    check_device,
    check_fit,
    check_options,
    check_precision,
    check_world,
)
from partitioner.lightning.library import imported
from partitioner.lightning.optimizers import StageOptimizer
from partitioner.lightning.planning import Planner
from partitioner.lightning.step import RecordedStep


class Small(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.accuracy = torchmetrics.MeanMetric()

    def forward(self, x):
        return self.second(self.first(x).tanh()) * self.scale

    def training_step(self, batch, batch_idx):
        loss = (self(batch["x"]) - batch["y"]).square().mean()
        self.log("loss", loss, True, on_step=True, batch_size=len(batch["x"]))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batch():
    return {"x": torch.randn(8, 4), "y": torch.randn(8, 3)}


def plan(module):
    layout = BatchLayout(batch())
    step = RecordedStep(module, "training_step", layout, (0,))
    planner = Planner(2, 4, {"device": "h100"})
    with step.recording():
        return step, planner(step, layout.split(batch(), 4)[0])


def test_a_step_is_recorded_under_the_modules_own_names():
    module = Small()
    trainer = module.__dict__["_trainer"]
    step, made = plan(module)
    assert set(made.graph.aliases) == set(dict(module.named_parameters()))
    assert made.graph.model is module
    assert set(step.logged) == {"loss"}
    assert step.logged["loss"] == {"prog_bar": True, "on_step": True}
    assert [each.name for each in made.graph.inputs] == ["batch_x", "batch_y"]
    # The module is as it was.
    assert {"forward", "log"}.isdisjoint(vars(module))
    assert module.__dict__["_trainer"] is trainer
    assert "forward" not in vars(module.accuracy)


def step_with(change):
    class Changed(Small):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return change(self, batch, batch_idx, loss)

    return Changed()


def logging(value: Any, **options: Any):
    def change(module, batch, batch_idx, loss):
        found = value(module, loss) if callable(value) else value
        module.log("more", found, **options)
        return loss

    return change


def metric_updated(module, batch, batch_idx, loss):
    module.accuracy.update(loss)
    return loss


REFUSED = {
    "uses batch_idx": lambda m, b, i, loss: loss * (i + 1),
    "'current_epoch'": lambda m, b, i, loss: loss * m.current_epoch,
    "reads the trainer's 'global_step'": lambda m, b, i, loss: loss + m.global_step,
    "gets a float": logging(0.5),
    "gets a MeanMetric": logging(lambda m, loss: m.accuracy),
    "logs 'loss' twice": lambda m, b, i, loss: [m.log("loss", loss), loss][1],
    "shape \\(2,\\)": logging(lambda m, loss: torch.stack([loss, loss])),
    "reduce_fx='sum'": logging(lambda m, loss: loss, reduce_fx="sum"),
    "updates the metric MeanMetric": metric_updated,
    "metric MeanMetric, which": lambda m, b, i, loss: m.accuracy(loss),
    "returns None": lambda m, b, i, loss: None,
    "returns a dict without 'loss'": lambda m, b, i, loss: {"other": loss},
    "as 'all'": lambda m, b, i, loss: {"loss": loss, "all": b["x"]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_would_be_wrong_later_is_refused(words):
    module = step_with(REFUSED[words])
    module.trainer = pl.Trainer(accelerator="cpu", devices=1, barebones=True)
    with pytest.raises(OptionError, match=words):
        plan(module)
    assert "forward" not in vars(module)


def test_the_optimizer_says_what_trains():
    module = Small()
    groups: list[dict[str, Any]] = [
        {"params": module.second.parameters(), "lr": 0.5},
        {"params": [module.scale]},
    ]
    optimizer = torch.optim.AdamW(groups)
    stage = StageOptimizer(optimizer, module)
    assert stage.left_out == list(module.first.parameters())
    assert stage.priced_as == "adamw"
    first, second = stage.rules()
    assert first["params"]("second.bias", module.second.bias)
    assert not first["params"]("scale", module.scale)
    assert second["params"]("scale", module.scale)
    with pytest.raises(OptionError, match="LBFGS runs forward"):
        StageOptimizer(torch.optim.LBFGS(module.parameters()), module)
    with pytest.raises(OptionError, match="not the module's"):
        StageOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(7))]), module)


class Manual(Small):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Iterates(Small):
    def training_step(self, dataloader_iter):  # type: ignore[override]
        return None


class Watches(Small):
    def on_after_backward(self):
        return None


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (Manual, {}, "optimizes manually"),
        (Iterates, {}, "dataloader_iter"),
        (Watches, {}, "Watches has on_after_backward"),
        (Small, {"accumulate_grad_batches": 2}, "accumulate_grad_batches=2"),
        (
            Small,
            {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
            "gradient_clip_algorithm='value'",
        ),
        (
            Small,
            {"callbacks": [pl.callbacks.StochasticWeightAveraging(0.1)]},
            "StochasticWeightAveraging",
        ),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused(module, options, words):
    library = imported(pl)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, **options,
    )  # fmt: skip
    with pytest.raises(OptionError, match=words):
        check_fit(trainer, module(), library)
    plain = pl.Trainer(accelerator="cpu", devices=1, logger=False, barebones=True)
    check_fit(plain, Small(), library)


def test_options_that_are_decided_elsewhere_are_refused():
    check_options({"device": "h100", "schedule": "1f1b"}, {"zero_bubble": True})
    check_precision("32-true")
    for options, initialize, words in (
        ({"schedule": "dualpipev"}, {}, "schedule='dualpipev'"),
        ({"optimizer": "sgd"}, {}, "optimizer='sgd'"),
        ({}, {"weights": "folder"}, "initialize=.*weights"),
    ):
        with pytest.raises(OptionError, match=words):
            check_options(options, initialize)
    check_world(4, 2)
    with pytest.raises(OptionError, match="3 processes for 2 stages"):
        check_world(3, 2)
    check_device("cpu", "cpu")
    with pytest.raises(OptionError, match="DS_ACCELERATOR=cpu"):
        check_device("cpu", "cuda")
    with pytest.raises(OptionError, match="16-mixed"):
        check_precision("16-mixed")
