"""A small LightningModule, fitted in one process or on the stages of this rank."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAccuracy

__all__ = ["Fit", "Fitted", "divided_by_rank", "fit", "fit_all", "weights_alone"]

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
    outputs: list[tuple[tuple[int, ...], float]]
    """Of every validation step: the shape of the scores, and a scalar."""
    steps: int
    epochs: int
    rates: list[float]
    state: dict[str, torch.Tensor]
    checkpoint: str
    printed: str
    tested: dict[str, float]


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


def fit(run: Fit, *, piped: bool) -> Fitted:
    """Fit in this process: the whole module, or this rank's stage."""
    warnings.simplefilter("ignore")
    lightning = importlib.import_module(run.library)
    from partitioner.lightning import PipelineStrategy

    lightning.seed_everything(0, verbose=False)
    module = module_class(lightning)(run.optimizer)
    if piped:  # stages draw for themselves, and loaders must not notice
        torch.rand(torch.distributed.get_rank())
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
        state = {k: v.detach().clone() for k, v in module.state_dict().items()}
        steps, epochs = trainer.global_step, trainer.current_epoch
        logged = {k: v.item() for k, v in trainer.callback_metrics.items()}
        best = None if saver is None else "best"
        tested = trainer.test(module, held_out, ckpt_path=best, verbose=False)
    return Fitted(
        losses=seen.losses,
        logged=logged,
        validated=seen.validated,
        outputs=seen.outputs,
        steps=steps,
        epochs=epochs,
        rates=seen.rates,
        state=state,
        checkpoint="" if saver is None else saver.last_model_path,
        printed=printed.getvalue(),
        tested=tested[0],
    )


def fit_all(runs: list[Fit]) -> list[Fitted]:
    return [fit(run, piped=True) for run in runs]


def weights_alone(folder: str) -> tuple[bool, bool]:
    """Save weights during a fit and after it; say whether files hold the final ones."""
    import pytorch_lightning as pl

    from partitioner.lightning import PipelineStrategy

    warnings.simplefilter("ignore")
    module = module_class(pl)("sgd")
    saver = pl.callbacks.ModelCheckpoint(folder, save_weights_only=True)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=1, logger=False, callbacks=[saver],
        strategy=PipelineStrategy(2, micro_batches=2, device="h100", library=pl),
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data(), 10))
    after = Path(folder) / "after.ckpt"
    trainer.save_checkpoint(after)

    def is_final(path: Any) -> bool:
        found = type(module).load_from_checkpoint(path).state_dict()
        return all(found[k].equal(v) for k, v in module.state_dict().items())

    return is_final(saver.best_model_path), is_final(after)


def divided_by_rank() -> str:
    """Give each stage other samples; return what that is refused with."""
    import pytorch_lightning as pl

    from partitioner.errors import RuntimeGuardError
    from partitioner.lightning import PipelineStrategy

    warnings.simplefilter("ignore")
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, barebones=True,
        strategy=PipelineStrategy(2, micro_batches=2, device="h100", library=pl),
    )  # fmt: skip
    mine = Subset(data(), range(torch.distributed.get_rank(), SAMPLES, 2))
    with pytest.raises(RuntimeGuardError) as refused:
        trainer.fit(module_class(pl)("sgd"), DataLoader(mine, 5))
    return refused.value.message
