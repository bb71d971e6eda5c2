"""Tiny models of every family that is priced, dropout off, with example inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

__all__ = ["NAMES", "build"]

VOCABULARY = 100
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.skip is None else self.skip(x)))


def _mlp() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU())
    return model.append(nn.Linear(16, 4)), torch.randn(3, 8)


def _resnet() -> tuple[nn.Module, Any]:
    blocks = nn.Sequential(_Residual(8, 8), _Residual(8, 16, 2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    stem = nn.Conv2d(3, 8, 3, padding=1)
    return nn.Sequential(stem, *blocks, *head), torch.randn(2, 3, 16, 16)


def _encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2), torch.randn(2, 16, 32)


def _ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, 16))


def _gpt2() -> tuple[nn.Module, Any]:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": _ids(), "labels": _ids()}


def _llama() -> tuple[nn.Module, Any]:
    config = transformers.LlamaConfig(**_SMALL, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config)
    return model, {"input_ids": _ids(), "labels": _ids()}


def _bert() -> tuple[nn.Module, Any]:
    config = transformers.BertConfig(
        **_SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 9:] = 0
    inputs = {
        "input_ids": _ids(),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1]),
    }
    return transformers.BertForSequenceClassification(config), inputs


def _t5() -> tuple[nn.Module, Any]:
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": _ids(), "labels": _ids()}


_BUILDERS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "mlp": _mlp,
    "resnet": _resnet,
    "encoder": _encoder,
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "t5": _t5,
}
NAMES = tuple(_BUILDERS)


def build(name: str) -> tuple[nn.Module, Any]:
    """Return a model in train mode and its example inputs."""
    torch.manual_seed(0)
    model, inputs = _BUILDERS[name]()
    return model.train(), inputs
