"""A small LightningModule, fitted in one process or on the stages of this rank."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

__all__ = ["Fit", "Fitted", "fit", "fit_all"]

SAMPLES, WIDTH, CLASSES = 30, 6, 4


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How the module is fitted; the same in one process and on stages."""

    library: str = "pytorch_lightning"
    optimizer: str = "sgd"
    batch_size: int = 8
    stages: int = 2
    trainer: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None
    resume: str | None = None
    early: bool = False
    shuffle: bool = False
    sampler: bool = False
    """Draw the order as Lightning does where there are replicas."""


@dataclass(kw_only=True)
class Fitted:
    """What a fit brought."""

    losses: list[float]
    logged: dict[str, float]
    validated: list[float]
    steps: int
    epochs: int
    rates: list[float]
    state: dict[str, torch.Tensor]
    checkpoint: str | None
    printed: str
    tested: list[Any]


def module_class(lightning: Any) -> Any:
    class Classifier(lightning.LightningModule):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind
            self.body = nn.Sequential(
                nn.Linear(WIDTH, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(),
                nn.Linear(10, 10), nn.Tanh(),
            )  # fmt: skip
            self.head = nn.Linear(10, CLASSES)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            scores = self(x)
            loss = nn.functional.cross_entropy(scores, y)
            right = (scores.argmax(-1) == y).float().mean()
            self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
            self.log_dict({"right": right}, on_step=False, on_epoch=True)
            return {"loss": loss, "right": right}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            scores = self(x)
            self.log("val_loss", nn.functional.cross_entropy(scores, y), prog_bar=True)
            return scores

        def test_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            self.log("test_loss", nn.functional.cross_entropy(self(x), y))

        def configure_optimizers(self) -> Any:
            used = [p for n, p in self.named_parameters() if "unused" not in n]
            weights = [p for p in used if p.dim() > 1]
            biases = [p for p in used if p.dim() < 2]
            groups = [
                {"params": weights, "weight_decay": 0.1},
                {"params": biases, "lr": 0.05},
            ]
            if self.kind == "adamw":
                made: Any = torch.optim.AdamW(groups, lr=0.02)
            else:
                made = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
            schedule = torch.optim.lr_scheduler.StepLR(made, 2, gamma=0.7)
            config = {"scheduler": schedule, "interval": "step"}
            return {"optimizer": made, "lr_scheduler": config}

    return Classifier


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
            self.shapes: list[Any] = []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.losses.append(outputs["loss"].item())
            self.rates.append(trainer.optimizers[0].param_groups[1]["lr"])

        def on_validation_batch_end(self, trainer, module, outputs, *_args):
            self.shapes.append(tuple(outputs.shape))

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                self.validated.append(trainer.callback_metrics["val_loss"].item())

    return Recorder()


def fit(run: Fit, *, piped: bool) -> Fitted:
    """Fit in this process: the whole module, or this rank's stage."""
    warnings.simplefilter("ignore")
    lightning = importlib.import_module(run.library)
    from partitioner.lightning import PipelineStrategy

    lightning.seed_everything(0, verbose=False)
    module = module_class(lightning)(run.optimizer)
    seen = recorder(lightning)
    callbacks: list[Any] = [seen]
    saver = None
    if run.folder is not None:
        where = Path(run.folder) / ("piped" if piped else "alone")
        saver = lightning.callbacks.ModelCheckpoint(
            dirpath=where, monitor="val_loss", save_last=True, save_top_k=2
        )
        callbacks.append(saver)
    if run.early:
        callbacks.append(
            lightning.callbacks.EarlyStopping("val_loss", patience=0, min_delta=0.05)
        )
    options: dict[str, Any] = {
        "accelerator": "cpu", "max_epochs": 2, "logger": False, "callbacks": callbacks,
        "enable_model_summary": False, "enable_checkpointing": saver is not None,
        "log_every_n_steps": 1, **run.trainer,
    }  # fmt: skip
    if piped:
        options["strategy"] = PipelineStrategy(
            run.stages, library=run.library,
            **{"micro_batches": 4, "device": "h100", **run.strategy},
        )  # fmt: skip
        options["devices"] = torch.distributed.get_world_size()
    else:
        options["devices"] = 1
    if options["logger"] == "csv":
        where = Path(str(run.folder)) / ("logs-piped" if piped else "logs-alone")
        options["logger"] = lightning.loggers.CSVLogger(where, name="", version="")
    trainer = lightning.Trainer(**options)
    order: Any = None
    if run.sampler:
        order = DistributedSampler(data(), num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data(), run.batch_size, shuffle=run.shuffle, sampler=order)
    held_out = DataLoader(data(), 7)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        trainer.fit(module, loader, held_out, ckpt_path=run.resume)
        logged = {k: v.item() for k, v in trainer.callback_metrics.items()}
        tested = trainer.test(module, held_out, verbose=False)
    return Fitted(
        losses=seen.losses,
        logged=logged,
        validated=seen.validated,
        steps=trainer.global_step,
        epochs=trainer.current_epoch,
        rates=seen.rates,
        state={k: v.detach().clone() for k, v in module.state_dict().items()},
        checkpoint=None if saver is None else saver.last_model_path,
        printed=printed.getvalue(),
        tested=[tested, seen.shapes],
    )


def fit_all(runs: list[Fit]) -> list[Fitted]:
    return [fit(run, piped=True) for run in runs]
