"""The models that tests capture, cut and train: tiny configurations, random weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

logging.getLogger("transformers").setLevel(logging.ERROR)

VOCABULARY = 100
Inputs = Any


@dataclass(frozen=True)
class Entry:
    """One model: how it is built, and a batch that it takes."""

    build: Callable[[float], nn.Module]
    """Takes the dropout rate."""
    batch: Callable[[int, torch.Generator], Inputs]
    """Takes the number of samples."""

    def example(self, samples: int = 2, seed: int = 0) -> Inputs:
        return self.batch(samples, torch.Generator().manual_seed(seed))

    def model(self, dropout: float = 0.1, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build(dropout).train()


def tokens(samples: int, generator: torch.Generator, length: int = 16) -> Tensor:
    return torch.randint(3, VOCABULARY, (samples, length), generator=generator)


def padding(samples: int, generator: torch.Generator, length: int = 16) -> Tensor:
    """A mask with another number of padded positions in every sample."""
    kept = torch.randint(length // 2, length + 1, (samples, 1), generator=generator)
    return (torch.arange(length) < kept).long()


def images(samples: int, generator: torch.Generator, size: int = 16) -> Tensor:
    return torch.randn(samples, 3, size, size, generator=generator)


def _mlp(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4)
    )


def _encoder(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False),
                nn.BatchNorm2d(outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.stage1 = nn.Sequential(Block(8, 8), Block(8, 8))
        self.stage2 = nn.Sequential(Block(8, 16, 2), Block(16, 16))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.stage1(self.stem(x)))
        return self.head(self.dropout(torch.flatten(x.mean((2, 3)), 1)))


class LSTMClassifier(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(
            16, 24, 2, batch_first=True, dropout=dropout, bidirectional=True
        )
        self.head = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden, (last, _) = self.lstm(self.embedding(x))
        return self.head(hidden[:, -1] + last.mean())


def gpt2(dropout: float, layers: int = 4) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=64,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _llama(dropout: float) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=4, hidden_size=32, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY,
        max_position_embeddings=64, attention_dropout=dropout,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=3, hidden_size=32, intermediate_size=64,
        num_attention_heads=4, vocab_size=VOCABULARY, max_position_embeddings=64,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def _t5(dropout: float) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=3, num_decoder_layers=3, d_model=32, d_ff=64, d_kv=8, num_heads=4,
        vocab_size=VOCABULARY, decoder_start_token_id=0, dropout_rate=dropout,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def _vit(dropout: float) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=3, hidden_size=32, intermediate_size=64,
        num_attention_heads=4, image_size=32, patch_size=8,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return ViTForImageClassification(config)


def _whisper(dropout: float) -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        encoder_layers=2, decoder_layers=2, d_model=32, encoder_ffn_dim=64,
        decoder_ffn_dim=64, encoder_attention_heads=4, decoder_attention_heads=4,
        vocab_size=VOCABULARY, num_mel_bins=16, max_source_positions=32,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        dropout=dropout, attention_dropout=dropout,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


def _text(samples: int, generator: torch.Generator) -> Inputs:
    return {"input_ids": tokens(samples, generator)}


def _labelled_text(samples: int, generator: torch.Generator) -> Inputs:
    ids = tokens(samples, generator)
    return {"input_ids": ids, "labels": ids.clone()}


def _masked_text(samples: int, generator: torch.Generator) -> Inputs:
    return {
        "input_ids": tokens(samples, generator),
        "attention_mask": padding(samples, generator),
    }


def _translation(samples: int, generator: torch.Generator) -> Inputs:
    return {
        **_masked_text(samples, generator),
        "decoder_input_ids": tokens(samples, generator, 12),
    }


def _labelled_translation(samples: int, generator: torch.Generator) -> Inputs:
    return {
        **_masked_text(samples, generator),
        "labels": tokens(samples, generator, 12),
    }


def _speech(samples: int, generator: torch.Generator) -> Inputs:
    return {
        "input_features": torch.randn(samples, 16, 64, generator=generator),
        "decoder_input_ids": tokens(samples, generator, 12),
    }


MODELS: dict[str, Entry] = {
    "mlp": Entry(_mlp, lambda n, g: torch.randn(n, 8, generator=g)),
    "encoder": Entry(_encoder, lambda n, g: torch.randn(n, 10, 32, generator=g)),
    "resnet": Entry(ResNet, images),
    "lstm": Entry(LSTMClassifier, lambda n, g: tokens(n, g, 7)),
    "gpt2": Entry(gpt2, _text),
    "gpt2-labels": Entry(gpt2, _labelled_text),
    "llama": Entry(_llama, _text),
    "bert": Entry(_bert, _masked_text),
    "t5": Entry(_t5, _translation),
    "t5-labels": Entry(_t5, _labelled_translation),
    "vit": Entry(_vit, lambda n, g: {"pixel_values": images(n, g, 32)}),
    "whisper": Entry(_whisper, _speech),
}
"""Every test over all models reads this table: adding a model is one entry."""
