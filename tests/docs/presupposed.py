"""What the snippets of each page take for granted: a model, a batch, data, files.

A page says ``model`` and means the reader's. Here it is a small one, with the modules
that the page names.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["presupposed"]

SAMPLES, LENGTH, WORDS, WIDTH = 2, 8, 60, 16

Names = dict[str, Any]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class MixerLayer(nn.Linear):
    """A layer of a class of its own."""


class Trunk(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.mixer = MixerLayer(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.mixer(x)


class Own(nn.Module):
    """A model as somebody writes it: tokens in, scores out."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.model = Trunk(layers)
        self.head = nn.Linear(WIDTH, WORDS)
        self.example_input_array = tokens()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.model(tokens))


def loss_fn(output: Any, labels: Tensor) -> Tensor:
    scores = getattr(output, "logits", output)
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def tokens() -> Tensor:
    return torch.arange(SAMPLES * LENGTH).reshape(SAMPLES, LENGTH) % WORDS


def gpt2(_folder: Path) -> Names:
    """A model that computes its own loss, and its batch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=32, n_head=2, n_positions=16, vocab_size=WORDS,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    batch = {"input_ids": tokens(), "labels": tokens()}
    return {"model": GPT2LMHeadModel(config), "batch": batch}


def own(_folder: Path) -> Names:
    """A model and a loss, with data for both."""
    import deepspeed

    from partitioner import partition

    model = Own()
    pairs = [(tokens(), tokens())] * 24
    dataset = [(tokens()[0], tokens()[0])] * 64
    return {
        "batch": tokens(),
        "batches": repeat(pairs[0]),
        "collator": None,
        "data": repeat(pairs[0]),
        "data_iter": repeat(pairs[0]),
        "dataset": dataset,
        "deepspeed": deepspeed,
        "held_out": pairs,
        "layers": 4,
        "loader": repeat(pairs[0]),
        "loss_fn": loss_fn,
        "model": model,
        "nn": nn,
        "partition": partition,
        "plan": partition(model, 2, example_inputs=tokens(), micro_batches=4),
        "torch": torch,
    }


def costs(folder: Path) -> Names:
    library = torch.library.Library("mylib", "DEF")
    library.define("mixer(Tensor x) -> Tensor")
    return {
        **own(folder),
        "library": library,  # gone with its last reference
        "MixerLayer": MixerLayer,
        "model": Own(layers=20),
    }


def checkpoints(folder: Path) -> Names:
    names = own(folder)
    return {**names, "loader": Position()}


class Position:
    """What can be attached to checkpoints."""

    def state_dict(self) -> dict[str, int]:
        return {"at": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state


def data(folder: Path) -> Names:
    names = own(folder)
    model = gpt2(folder)["model"]
    labels = {"input_ids": tokens(), "labels": tokens()}
    plan = names["partition"](model, 2, example_inputs=labels, micro_batches=4)
    each = {name: value[0] for name, value in labels.items()}
    return {
        **names,
        "plan": plan,
        "loss_fn": None,
        "collator": torch.utils.data.default_collate,
        "dataset": [each] * 64,
        "held_out": [labels] * 16,
        "batches": repeat(labels),
    }


def huggingface(folder: Path) -> Names:
    from transformers import AutoConfig, AutoModelForCausalLM

    names = gpt2(folder)
    place = folder / "llama"
    names["model"].save_pretrained(place)
    return {
        **own(folder),
        "batch": names["batch"],
        "folder": place,
        "AutoConfig": AutoConfig,
        "AutoModelForCausalLM": AutoModelForCausalLM,
    }


def weights(folder: Path) -> Names:
    from huggingface_hub import constants

    from partitioner import InitialWeights

    names = huggingface(folder)
    model = gpt2(folder)["model"]
    cache = folder / "cache"
    constants.HF_HUB_CACHE = str(cache)
    repository = cache / "models--meta-llama--Llama-3.1-8B"
    for place in (Path("checkpoints/llama-70b"), repository / "snapshots" / "abc"):
        model.save_pretrained(place)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text("abc")
    torch.save(model.state_dict(), "model.pt")
    return {
        **names,
        "batch": {"input_ids": tokens()},
        "config": model.config,
        "InitialWeights": InitialWeights,
    }


def tune(folder: Path) -> Names:
    from partitioner import Plan, partition

    model = Own()
    (folder / "best").mkdir(exist_ok=True)
    plan = partition(model, 2, example_inputs=tokens(), device="h100")
    plan.save(folder / "best" / "plan.json")
    many = tokens().repeat(64, 1)
    return {"model": model, "batch": many, "Plan": Plan, "loss_fn": loss_fn}


def lightning(_folder: Path) -> Names:
    import pytorch_lightning as pl
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Own()

        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss = loss_fn(self.inner(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor]) -> None:
            self.log("val_loss", loss_fn(self.inner(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    many = tokens()[0].expand(32, LENGTH)
    loader = DataLoader(TensorDataset(many, many), batch_size=16)
    return {"module": Module(), "train_loader": loader, "val_loader": loader}


PAGES: dict[str, Callable[[Path], Names]] = {
    "checkpoints": checkpoints,
    "costs": costs,
    "data": data,
    "huggingface": huggingface,
    "lightning": lightning,
    "timeline": own,
    "training": own,
    "tune": tune,
    "weights": weights,
}
"""All others presuppose a model that computes its own loss."""


def presupposed(page: str, folder: Path) -> Names:
    """Return the names that a page's snippets may use.

    Args:
        page: Its name, without ``.md``.
        folder: The current folder, of all ranks.
    """
    torch.manual_seed(0)
    return PAGES.get(page, gpt2)(folder)
