"""A Hugging Face model in a LightningModule: padded batches, several loaders."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel

__all__ = ["Language", "fit_gpt2"]

IGNORED = -100


class Language(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(
            n_embd=16, n_layer=3, n_head=2, vocab_size=40, n_positions=16,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def training_step(self, batch: Any) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.log(f"val_{dataloader_idx}", self.model(**batch).loss)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def padded(samples: list[Tensor]) -> BatchEncoding:
    longest = max(map(len, samples))

    def joined(value: int) -> Tensor:
        rows = [
            nn.functional.pad(s, (0, longest - len(s)), value=value) for s in samples
        ]
        return torch.stack(rows)

    labels = joined(IGNORED)
    mask = (labels != IGNORED).long()
    return BatchEncoding(
        {"input_ids": joined(0), "labels": labels, "attention_mask": mask}
    )


def targets(batch: Any) -> Tensor:
    return (batch["labels"][:, 1:] != IGNORED).sum()


class Losses(pl.Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any):
        self.found.append(outputs["loss"].item())


def fit_gpt2(*, piped: bool) -> tuple[list[float], dict[str, float]]:
    """Return the losses of all steps, and what was logged at the end."""
    warnings.simplefilter("ignore")
    from partitioner.lightning import PipelineStrategy

    pl.seed_everything(3, verbose=False)
    options: dict[str, Any] = {"devices": 1}
    if piped:
        strategy = PipelineStrategy(
            2, micro_batches=2, device="h100", library=pl, tokens=targets
        )
        options = {"devices": 2, "strategy": strategy}
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 12, (17,), generator=generator).tolist()
    data: Any = [torch.randint(1, 40, (n,), generator=generator) for n in lengths]
    losses = Losses()
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, callbacks=[losses],
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(
        Language(),
        DataLoader(data, 5, shuffle=True, collate_fn=padded),
        [DataLoader(data[:each], 4, collate_fn=padded) for each in (9, 6)],
    )
    return losses.found, {k: v.item() for k, v in trainer.callback_metrics.items()}
