"""T5: both embeddings, encoder blocks, decoder blocks, and the head."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import transformers
from deepspeed.pipe import LayerSpec
from torch import Tensor, nn
from transformers.models.t5 import modeling_t5

from benchmarks.speed.layers import HandLayer, cross_entropy
from benchmarks.speed.workloads import MicroBatch, Workload

__all__ = ["t5_large"]


class _Embeddings(HandLayer):
    """Embeds both sentences: the decoder's waits while the encoder runs."""

    def __init__(self, config: Any) -> None:
        super().__init__(shared="encoder.embed_tokens")
        self.shared = nn.Embedding(config.vocab_size, config.d_model)

    def forward(self, ids: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.shared(ids[0]), self.shared(ids[1])


class _Block(HandLayer):
    """One block of the encoder or the decoder; the last of each has a norm.

    Between them travel the activations of both sides, and the bias of positions that
    the first block of a side makes for all its blocks.
    """

    def __init__(self, config: Any, side: str, index: int, *, last: bool) -> None:
        paths = {"block": f"{side}.block.{index}"}
        if last:
            paths["norm"] = f"{side}.final_layer_norm"
        super().__init__(**paths)
        self.block = modeling_t5.T5Block(config, index == 0, index)
        if last:
            self.norm = modeling_t5.T5LayerNorm(
                config.d_model, eps=config.layer_norm_epsilon
            )
        self.last = last


class _Encoder(_Block):
    def forward(self, received: Any) -> Any:
        encoded, decoded, *bias = received
        encoded, made, _ = self.block(encoded, position_bias=bias[0] if bias else None)
        return (self.norm(encoded), decoded) if self.last else (encoded, decoded, made)


class _Decoder(_Block):
    def forward(self, received: Any) -> Any:
        encoded, decoded, *bias = received
        decoded, made, _ = self.block(
            decoded,
            position_bias=bias[0] if bias else None,
            encoder_hidden_states=encoded,
        )
        return self.norm(decoded) if self.last else (encoded, decoded, made)


class _Head(HandLayer):
    def __init__(self, config: Any) -> None:
        super().__init__(lm_head="lm_head")
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    def forward(self, decoded: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(decoded)
        return logits


def _layers(config: Any) -> list[LayerSpec]:
    specs = [LayerSpec(_Embeddings, config)]
    for kind, side, count in (
        (_Encoder, "encoder", config.num_layers),
        (_Decoder, "decoder", config.num_decoder_layers),
    ):
        own = copy.deepcopy(config)
        own.is_decoder = side == "decoder"
        specs += [
            LayerSpec(kind, own, side, index, last=index + 1 == count)
            for index in range(count)
        ]
    return [*specs, LayerSpec(_Head, config)]


def _sentences(samples: int, lengths: tuple[int, int], vocabulary: int) -> MicroBatch:
    def draw(length: int) -> Tensor:
        return torch.randint(vocabulary, (samples, length))

    inputs = {"input_ids": draw(lengths[0]), "decoder_input_ids": draw(lengths[1])}
    return inputs, draw(lengths[1])


def t5_large(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """T5-large's shape, the head not tied, without dropout."""
    sizes = {
        "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16,
        "vocab_size": 32128,
    }  # fmt: skip
    small = {
        "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 3, "num_heads": 4,
        "vocab_size": 500,
    }  # fmt: skip
    config = transformers.T5Config(
        **(small if tiny else sizes),
        dropout_rate=0.0,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    samples, lengths = (2, (16, 8)) if tiny else (8, (512, 256))
    return Workload(
        name="t5-large",
        torch_pipelines=False,
        model=partial(modeling_t5.T5ForConditionalGeneration, config),
        layers=partial(_layers, config),
        micro_batch=partial(_sentences, samples, lengths, config.vocab_size),
        loss=cross_entropy,
        items=samples,
        unit="samples",
    )
