"""Causal language models: embedding, blocks, norm and head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from deepspeed.pipe import LayerSpec
from torch import Tensor, nn
from transformers.models.gemma import modeling_gemma
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama import modeling_llama

from benchmarks.speed.layers import HandLayer, cross_entropy
from benchmarks.speed.workloads import MicroBatch, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gemma_2b", "gpt2_medium", "llama_1b", "llama_7b"]


class _Embedding(HandLayer):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(embed_tokens="model.embed_tokens")
        self.embed_tokens = nn.Embedding(vocabulary, width)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.embed_tokens(ids)
        return found


class _ScaledEmbedding(_Embedding):
    """Gemma's: times the root of the width."""

    def forward(self, ids: Tensor) -> Tensor:
        embedded = super().forward(ids)
        scale = torch.tensor(self.embed_tokens.embedding_dim**0.5).to(embedded)
        return embedded * scale


class _RotaryBlock(HandLayer):
    """A decoder layer with its own table of rotary angles, made once."""

    def __init__(self, library: Any, config: Any, index: int, length: int) -> None:
        super().__init__(layer=f"model.layers.{index}")
        family = type(config).__name__.removesuffix("Config")
        self.layer = getattr(library, f"{family}DecoderLayer")(config, index)
        rotary = getattr(library, f"{family}RotaryEmbedding")(config)
        positions = torch.arange(length)[None]
        like = torch.zeros((), dtype=config.dtype)
        cos, sin = rotary(like, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.layer(hidden, position_embeddings=(self.cos, self.sin))
        return found


class _Head(HandLayer):
    def __init__(
        self, norm: Callable[[], nn.Module], norm_path: str, config: Any
    ) -> None:
        super().__init__(norm=norm_path, lm_head="lm_head")
        self.norm = norm()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits


class _Gpt2Embedding(HandLayer):
    def __init__(self, config: Any) -> None:
        super().__init__(wte="transformer.wte", wpe="transformer.wpe")
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.dropout = nn.Dropout(config.embd_pdrop)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[-1], device=ids.device)
        found: Tensor = self.dropout(self.wte(ids) + self.wpe(positions))
        return found


class _Gpt2Block(HandLayer):
    def __init__(self, config: Any, index: int) -> None:
        super().__init__(block=f"transformer.h.{index}")
        self.block = modeling_gpt2.GPT2Block(config, layer_idx=index)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.block(hidden)
        return found if isinstance(found, Tensor) else found[0]


def _rotary_layers(
    library: Any, config: Any, length: int, embedding: type[_Embedding]
) -> list[LayerSpec]:
    family = type(config).__name__.removesuffix("Config")
    norm = partial(
        getattr(library, f"{family}RMSNorm"),
        config.hidden_size,
        eps=config.rms_norm_eps,
    )
    return [
        LayerSpec(embedding, config.vocab_size, config.hidden_size),
        *(
            LayerSpec(_RotaryBlock, library, config, index, length)
            for index in range(config.num_hidden_layers)
        ),
        LayerSpec(_Head, norm, "model.norm", config),
    ]


def _gpt2_layers(config: Any) -> list[LayerSpec]:
    norm = partial(nn.LayerNorm, config.n_embd, eps=config.layer_norm_epsilon)
    return [
        LayerSpec(_Gpt2Embedding, config),
        *(LayerSpec(_Gpt2Block, config, index) for index in range(config.n_layer)),
        LayerSpec(_Head, norm, "transformer.ln_f", config),
    ]


def _tokens(samples: int, length: int, vocabulary: int) -> MicroBatch:
    ids = torch.randint(vocabulary, (samples, length + 1))
    return {"input_ids": ids[:, :-1].contiguous()}, ids[:, 1:].contiguous()


_TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip


def llama_1b(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """Llama-3.2-1B's shape, head and embedding not tied."""
    sizes = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    }  # fmt: skip
    return _llama("llama-1b", _TINY if tiny else sizes, tiny=tiny, dtype=dtype)


def llama_7b(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """Llama-2-7B's shape; as tiny it has enough layers for eight stages."""
    sizes = {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    }  # fmt: skip
    small = _TINY | {"num_hidden_layers": 16}
    return _llama("llama-7b", small if tiny else sizes, tiny=tiny, dtype=dtype)


def _llama(
    name: str, sizes: dict[str, int], *, tiny: bool, dtype: torch.dtype
) -> Workload:
    config = transformers.LlamaConfig(**sizes, **_plain(dtype))
    kind = modeling_llama.LlamaForCausalLM
    return _rotary(name, modeling_llama, kind, config, _Embedding, tiny=tiny)


def gemma_2b(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """Gemma-2-2B's sizes in Gemma's blocks (whose attention flash kernels can do)."""
    sizes = {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 256000,
    }  # fmt: skip
    small = _TINY | {"head_dim": 16, "vocab_size": 2000}
    config = transformers.GemmaConfig(**(small if tiny else sizes), **_plain(dtype))
    kind = modeling_gemma.GemmaForCausalLM
    return _rotary(
        "gemma-2b", modeling_gemma, kind, config, _ScaledEmbedding, tiny=tiny
    )


def _plain(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
        "dtype": dtype,
    }


def _rotary(
    name: str,
    library: Any,
    kind: Any,
    config: Any,
    embedding: type[_Embedding],
    *,
    tiny: bool,
) -> Workload:
    samples, length = (2, 32) if tiny else (2, 2048)
    layers = partial(_rotary_layers, library, config, length, embedding)
    return _causal(name, kind, config, layers, (samples, length))


def gpt2_medium(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """GPT-2 medium, head and embedding not tied, without dropout."""
    sizes = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    small = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 1000}
    config = transformers.GPT2Config(
        **(small if tiny else sizes),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    shape = (2, 32) if tiny else (16, 1024)
    layers = partial(_gpt2_layers, config)
    return _causal("gpt2-medium", modeling_gpt2.GPT2LMHeadModel, config, layers, shape)


def _causal(
    name: str,
    kind: Any,
    config: Any,
    layers: Callable[[], list[LayerSpec]],
    shape: tuple[int, int],
) -> Workload:
    samples, length = shape
    return Workload(
        name=name,
        model=partial(kind, config),
        layers=layers,
        micro_batch=partial(_tokens, samples, length, config.vocab_size),
        loss=cross_entropy,
        items=samples * length,
        unit="tokens",
    )
