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
from torch.utils.data import DataLoader, DistributedSampler, Subset

from tests.distributed.lightning_module import SAMPLES, data, module_class, recorder

__all__ = ["Fit", "Fitted", "divided_by_rank", "fit", "fit_all", "weights_alone"]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How the module is fitted; the same in one process and on stages."""

    library: str = "pytorch_lightning"
    optimizer: str = "sgd"
    batch_size: int = 8
    stages: int = 2
    trainer: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    logger: str = ""
    """The class of a logger."""
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
    printed: str = ""
    tested: dict[str, float] = field(default_factory=dict)


def fit(run: Fit, *, piped: bool) -> Fitted:
    """Fit in this process: the whole module, or this rank's stage."""
    warnings.simplefilter("ignore")
    lightning = importlib.import_module(run.library)
    lightning.seed_everything(0, verbose=False)
    module = module_class(lightning)(run.optimizer)
    if piped:  # stages draw for themselves, and loaders must not notice
        torch.rand(torch.distributed.get_rank())
    seen = recorder(lightning)
    trainer = trainer_for(run, lightning, seen, piped=piped)
    saver = trainer.checkpoint_callback
    order: Any = None
    if run.sampler:
        order = DistributedSampler(data(), num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(data(), run.batch_size, shuffle=run.shuffle, sampler=order)
    held_out = DataLoader(data(), 7)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        trainer.fit(module, loader, held_out, ckpt_path=run.resume)
        found = Fitted(
            losses=seen.losses,
            logged={k: v.item() for k, v in trainer.callback_metrics.items()},
            validated=seen.validated,
            outputs=seen.outputs,
            steps=trainer.global_step,
            epochs=trainer.current_epoch,
            rates=seen.rates,
            state={k: v.detach().clone() for k, v in module.state_dict().items()},
            checkpoint="" if saver is None else saver.last_model_path,
        )
        best = None if saver is None else "best"
        (found.tested,) = trainer.test(module, held_out, best, verbose=False)
    found.printed = printed.getvalue()
    return found


def trainer_for(run: Fit, lightning: Any, seen: Any, *, piped: bool) -> Any:
    """Return the Trainer of a fit; they differ in strategy and folder alone."""
    from partitioner.lightning import PipelineStrategy

    own = Path(run.folder or ".") / ("piped" if piped else "alone")
    callbacks = [seen]
    if run.folder is not None:
        callbacks.append(
            lightning.callbacks.ModelCheckpoint(
                own, monitor="val_loss", save_last=True, save_top_k=2
            )
        )
    if run.early:
        stop = lightning.callbacks.EarlyStopping("val_loss", patience=0, min_delta=0.05)
        callbacks.append(stop)
    options: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "max_epochs": 2, "callbacks": callbacks,
        "enable_model_summary": False, "enable_checkpointing": run.folder is not None,
        "log_every_n_steps": 1, "logger": False, **run.trainer,
    }  # fmt: skip
    if run.logger:
        logger = getattr(lightning.loggers, run.logger)
        options["logger"] = logger(own, name="", version="logs")
    if piped:
        options["devices"] = torch.distributed.get_world_size()
        chosen: dict[str, Any] = {"micro_batches": 4, "device": "h100", **run.strategy}
        options["strategy"] = PipelineStrategy(
            run.stages, library=run.library, **chosen
        )
    return lightning.Trainer(**options)


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
