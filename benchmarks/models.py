"""Models of well-known shapes with random weights, and one micro-batch for each.

Micro-batches are large enough to keep an H200 busy: with smaller ones the host's own
time sets the pace, which differs by a sixth from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SHAPES", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """How to build a model (on the current default device) and feed it."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]


def _model(kind: Callable[[Any], Any], config: Any) -> nn.Module:
    model: nn.Module = kind(config)
    return model


def _tokens(samples: int, length: int, vocabulary: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(vocabulary, (samples, length))}


def _gpt2_medium() -> nn.Module:
    config = transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16)
    return _model(transformers.GPT2LMHeadModel, config)


def _llama_1b() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    return _model(transformers.LlamaForCausalLM, config)


def _vit_large() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
        intermediate_size=4096, num_labels=1000,
    )  # fmt: skip
    return _model(transformers.ViTForImageClassification, config)


def _resnet_152() -> nn.Module:
    config = transformers.ResNetConfig(depths=[3, 8, 36, 3], num_labels=1000)
    return _model(transformers.ResNetForImageClassification, config)


def _t5_large() -> nn.Module:
    config = transformers.T5Config(
        d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_decoder_layers=24,
        num_heads=16, vocab_size=32128, decoder_start_token_id=0,
    )  # fmt: skip
    return _model(transformers.T5ForConditionalGeneration, config)


def _t5_inputs() -> dict[str, Tensor]:
    ids = _tokens(32, 512, 32128)
    return {**ids, "decoder_input_ids": torch.randint(32128, (32, 256))}


def _images(samples: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(samples, 3, 224, 224)}


SHAPES = {
    "gpt2-medium": Shape(_gpt2_medium, lambda: _tokens(16, 1024, 50257)),
    "llama-1b": Shape(_llama_1b, lambda: _tokens(8, 2048, 128256)),
    "llama-1b-short": Shape(_llama_1b, lambda: _tokens(2, 2048, 128256)),
    "vit-large": Shape(_vit_large, lambda: _images(128)),
    "resnet-152": Shape(_resnet_152, lambda: _images(256)),
    "t5-large": Shape(_t5_large, _t5_inputs),
}
