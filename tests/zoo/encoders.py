"""Text encoders, with heads for tokens, sequences, spans and pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.zoo.entry import (
    ATTENTION,
    MLP,
    VOCABULARY,
    Entry,
    Missing,
    Pretrained,
    generator,
    padding,
    tokens,
)

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_labels": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PARTS = (r"attention\.self$", r"layer\.\d+\.(intermediate|output)$")
"""Attention and the two modules that are BERT's MLP."""


def padded(samples: int, length: int) -> dict[str, Tensor]:
    return {
        "input_ids": tokens(samples, length),
        "attention_mask": padding(samples, length),
    }


def labels(samples: int, *shape: int, below: int = 5) -> Tensor:
    key = ("labels", samples, shape)
    return torch.randint(below, (samples, *shape), generator=generator(*key))


def tagged(samples: int, length: int) -> dict[str, Tensor]:
    """Labels for tokens; padding has none."""
    batch = padded(samples, length)
    kept = batch["attention_mask"] > 0
    return batch | {"labels": torch.where(kept, labels(samples, length), -100)}


def masked(samples: int, length: int) -> dict[str, Tensor]:
    """Tokens to guess; the others have no label."""
    batch = padded(samples, length)
    hidden = labels(samples, length, below=2) > 0
    return batch | {"labels": torch.where(hidden, batch["input_ids"], -100)}


def classified(samples: int, length: int) -> dict[str, Tensor]:
    return padded(samples, length) | {"labels": labels(samples)}


def answered(samples: int, length: int) -> dict[str, Tensor]:
    ends = labels(samples, 2, below=length // 2)
    return padded(samples, length) | {
        "token_type_ids": labels(samples, length, below=2),
        "start_positions": ends[:, 0],
        "end_positions": ends[:, 1],
    }


def unpadded(samples: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(samples, length)}


def encoder(
    name: str,
    prefix: str,
    head: str,
    inputs: Any,
    *,
    through: tuple[str, ...] = PARTS,
    **settings: Any,
) -> Entry | Missing:
    """An entry for ``<prefix>For<head>``.

    Args:
        name: The entry's name, before the head's.
        prefix: What the classes' names begin with.
        head: The rest of the model's class.
        inputs: Takes samples and length, returns the batch.
        through: Patterns of the modules to cut.
        settings: The configuration's own settings.
    """
    classes = f"{prefix}For{head}", f"{prefix}Config"
    sizes = SIZES | settings
    return Pretrained(name, *classes, sizes, inputs=inputs, through=through)


DEBERTA: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}
MODERN = {
    "cls_token_id": 1,
    "sep_token_id": 2,
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "embedding_dropout": 0.1,
    "attention_dropout": 0.1,
    "mlp_dropout": 0.1,
}

ENTRIES = (
    encoder("bert masked tokens", "Bert", "MaskedLM", masked),
    encoder("bert answers", "Bert", "QuestionAnswering", answered, num_labels=2),
    encoder("roberta sequences", "Roberta", "SequenceClassification", classified),
    encoder("deberta-v2 tokens", "DebertaV2", "TokenClassification", tagged, **DEBERTA),
    encoder(
        "modernbert masked tokens",
        "ModernBert",
        "MaskedLM",
        masked,
        through=(ATTENTION, MLP),
        **MODERN,
    ),
    encoder("electra", "Electra", "PreTraining", unpadded, embedding_size=16),
)
