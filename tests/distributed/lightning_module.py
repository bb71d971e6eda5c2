"""A small LightningModule of either library, its data, and a witness of its fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

__all__ = ["SAMPLES", "data", "module_class", "recorder"]

SAMPLES, WIDTH, CLASSES = 30, 6, 4


class Steps(nn.Module):
    """Has parts that training or validation alone runs, and state that hooks keep."""

    log: Any
    log_dict: Any
    save_hyperparameters: Any
    hparams: Any
    global_step: int
    sharpness: torch.Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(),
            nn.Linear(10, 10), nn.Tanh(),
        )  # fmt: skip
        self.head = nn.Linear(10, CLASSES)
        self.extra = nn.Linear(10, CLASSES)
        self.teacher = nn.Linear(WIDTH, CLASSES)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("sharpness", torch.ones(()))
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")
        self.seen = SumMetric()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) * self.sharpness

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.sharpness.fill_(1 + 0.1 * self.global_step)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        hidden = self.body(x)
        scores = self.head(hidden) * self.sharpness
        loss = nn.functional.cross_entropy(scores, y)
        loss = loss + 0.1 * nn.functional.cross_entropy(self.extra(hidden), y)
        right = (scores.argmax(-1) == y).float().mean()
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log_dict({"right": right}, on_step=False, on_epoch=True)
        return {"loss": loss, "right": right}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        self.log("val_loss", nn.functional.cross_entropy(scores, y), prog_bar=True)
        self.log("distance", (scores - self.teacher(x)).square().mean())
        return {"scores": scores, "size": scores.square().mean()}

    def on_validation_batch_end(self, outputs: Any, batch: Any, *_args: Any) -> None:
        self.accuracy.update(outputs["scores"], batch[1])
        self.seen.update(len(batch[1]))

    def on_validation_epoch_end(self) -> None:
        self.log("accuracy", self.accuracy)
        self.log("seen", self.seen.compute())
        self.seen.reset()

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self) -> Any:
        left_out = ("unused", "teacher")
        named = self.named_parameters()
        used = [p for n, p in named if not n.startswith(left_out)]
        weights = [p for p in used if p.dim() > 1]
        biases = [p for p in used if p.dim() < 2]
        groups = [
            {"params": weights, "weight_decay": 0.1},
            {"params": biases, "lr": 0.05},
        ]
        if self.hparams.kind == "adamw":
            made: Any = torch.optim.AdamW(groups, lr=0.02)
        else:
            made = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.7)
        config = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": made, "lr_scheduler": config}


def module_class(lightning: Any) -> Any:
    return type("Classifier", (Steps, lightning.LightningModule), {})


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(x, (x.sum(-1) * 2).long().abs() % CLASSES)


def recorder(lightning: Any) -> Any:
    class Recorder(lightning.Callback):
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.rates: list[float] = []
            self.validated: list[float] = []
            self.outputs: list[Any] = []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.losses.append(outputs["loss"].item())
            self.rates.append(trainer.optimizers[0].param_groups[1]["lr"])

        def on_validation_batch_end(self, trainer, module, outputs, *_args):
            self.outputs.append(
                (tuple(outputs["scores"].shape), outputs["size"].item())
            )

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                self.validated.append(trainer.callback_metrics["val_loss"].item())

    return Recorder()
