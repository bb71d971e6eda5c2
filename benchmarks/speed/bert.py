"""BERT: embedding, encoder layers, and the head that predicts masked words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from deepspeed.pipe import LayerSpec
from transformers.models.bert import modeling_bert

from benchmarks.speed.layers import HandLayer, cross_entropy
from benchmarks.speed.workloads import MicroBatch, Workload

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["bert_large"]


class _Embeddings(HandLayer):
    def __init__(self, config: Any) -> None:
        super().__init__(embeddings="bert.embeddings")
        self.embeddings = modeling_bert.BertEmbeddings(config)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.embeddings(input_ids=ids)
        return found


class _Layer(HandLayer):
    def __init__(self, config: Any, index: int) -> None:
        super().__init__(layer=f"bert.encoder.layer.{index}")
        self.layer = modeling_bert.BertLayer(config, layer_idx=index)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.layer(hidden)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output


class _Head(HandLayer):
    def __init__(self, config: Any) -> None:
        super().__init__(cls="cls")
        self.cls = modeling_bert.BertOnlyMLMHead(config)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.cls(hidden)
        return logits


def _layers(config: Any) -> list[LayerSpec]:
    return [
        LayerSpec(_Embeddings, config),
        *(
            LayerSpec(_Layer, config, index)
            for index in range(config.num_hidden_layers)
        ),
        LayerSpec(_Head, config),
    ]


def _words(samples: int, length: int, vocabulary: int) -> MicroBatch:
    shape = (samples, length)
    return (
        {"input_ids": torch.randint(vocabulary, shape)},
        torch.randint(vocabulary, shape),
    )


def bert_large(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """BERT-large's shape, 512 words, head and embedding not tied, without dropout."""
    sizes = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 30522,
    }  # fmt: skip
    small = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12,
        "num_attention_heads": 4, "vocab_size": 500,
    }  # fmt: skip
    config = transformers.BertConfig(
        **(small if tiny else sizes),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    samples, length = (2, 16) if tiny else (16, 512)
    return Workload(
        name="bert-large",
        model=partial(modeling_bert.BertForMaskedLM, config),
        layers=partial(_layers, config),
        micro_batch=partial(_words, samples, length, config.vocab_size),
        loss=cross_entropy,
        items=samples,
        unit="samples",
    )
