"""Train a LightningModule as a pipeline, with Lightning's own Trainer.

    python examples/lightning_train.py --folder out
    python examples/lightning_train.py --folder out --resume --stages 3

Lightning starts the processes; ``torchrun --nproc-per-node 2`` may do so as well. The
module is an ordinary one, and losses, checkpoints and early stopping are Lightning's:
what is new is ``strategy=``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from partitioner.lightning import PipelineStrategy

WORDS, LENGTH, WIDTH = 32, 12, 32


class Sorter(pl.LightningModule):
    """Says at each place which word stands there once the sequence is sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True
            )
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores, (samples, length, words)."""
        hidden = self.words(words) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.head(hidden)
        return scores

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Return the loss of a batch."""
        words, targets = batch
        scores = self(words)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        right = (scores.argmax(-1) == targets).float().mean()
        self.log("loss", loss, prog_bar=True)
        self.log("right", right, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log the loss of a batch."""
        words, targets = batch
        scores = self(words).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, targets.flatten())
        self.log("val_loss", loss, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Decay weights, not biases and norms; lower the learning rate."""
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.parameters() if p.dim() > 1]},
            {
                "params": [p for p in self.parameters() if p.dim() == 1],
                "weight_decay": 0.0,
            },
        ]
        optimizer = torch.optim.AdamW(groups, lr=3e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Printed(Callback):
    """Prints the loss of every step, on the first process."""

    def on_train_batch_end(self, trainer: Any, *hook: Any) -> None:
        """Print one line."""
        outputs = hook[1]
        if trainer.is_global_zero:
            print(f"step {trainer.global_step}: loss {outputs['loss'].item():.4f}")


def sequences(count: int, seed: int) -> TensorDataset:
    """Return sequences of words, and the same sorted."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    return TensorDataset(words, words.sort(-1).values)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=options.stages,
        strategy=PipelineStrategy(options.stages, micro_batches=4),
        max_epochs=options.epochs * (1 + options.resume),
        callbacks=[
            ModelCheckpoint(options.folder, monitor="val_loss", save_last=True),
            EarlyStopping("val_loss", patience=2),
            Printed(),
        ],
        logger=CSVLogger(options.folder, name="logs"),
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    trainer.fit(
        Sorter(),
        DataLoader(sequences(256, seed=0), batch_size=32, shuffle=True),
        DataLoader(sequences(64, seed=1), batch_size=32),
        ckpt_path=options.folder / "last.ckpt" if options.resume else None,
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
