"""Encoder–decoder models of text and speech, and a speech encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.zoo.entry import (
    MLP,
    VOCABULARY,
    Entry,
    Missing,
    Pretrained,
    noise,
    padding,
    tokens,
)

T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
LAYER_DROP = {"encoder_layerdrop": 0.3, "decoder_layerdrop": 0.3}
WHISPER = BART | {
    "num_mel_bins": 8,
    "max_source_positions": 12,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
WAV2VEC2 = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (4, 2, 2),
    "conv_kernel": (8, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}
RANDOM = {
    "layerdrop": 0.3,
    "apply_spec_augment": True,
    "mask_time_prob": 0.3,
    "mask_time_length": 4,
    "mask_feature_prob": 0.2,
    "mask_feature_length": 4,
}
PARTS = (r"self_attn$", r"fc1$")
"""Attention, and between the two layers of the MLP, which is no module here."""


WAVES: dict[str, Any] = {
    "length": 800,
    "inputs": lambda n, length: {"input_values": noise(n, length)},
}


def speech(samples: int, length: int) -> dict[str, Tensor]:
    return {
        "input_features": noise(samples, 8, 24),
        "decoder_input_ids": tokens(samples, length),
    }


def text(samples: int, length: int) -> dict[str, Tensor]:
    """Padding in what is read; the decoder's tokens have another length."""
    return {
        "input_ids": tokens(samples, length),
        "attention_mask": padding(samples, length),
        "decoder_input_ids": tokens(samples, 12),
    }


def seq2seq(
    name: str, prefix: str, sizes: dict[str, Any], **more: Any
) -> Entry | Missing:
    """An entry for ``<prefix>ForConditionalGeneration``."""
    model, config = f"{prefix}ForConditionalGeneration", f"{prefix}Config"
    fields = {"inputs": text, "through": PARTS} | more
    return Pretrained(name, model, config, sizes, **fields)


RANDOM_LAYERS = "Python uses the value of a random number"

ENTRIES = (
    seq2seq("t5", "T5", T5, through=(r"SelfAttention$", r"EncDecAttention$", MLP)),
    seq2seq("bart", "Bart", BART),
    seq2seq(
        "bart with layer drop",
        "Bart",
        BART | LAYER_DROP,
        leaves=dict.fromkeys(("model.encoder", "model.decoder"), RANDOM_LAYERS),
        heavy_leaf="Python draws which layers of the encoder and the decoder run",
        through=(),
    ),
    seq2seq("pegasus", "Pegasus", BART),
    seq2seq("whisper", "Whisper", WHISPER, length=12, inputs=speech),
    Pretrained(
        "wav2vec2 with layer drop",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        WAV2VEC2 | RANDOM,
        **WAVES,
        leaves={"wav2vec2": "ndarray"},
        heavy_leaf="Python draws which layers run, and numpy what is masked",
        through=(),
    ),
    Pretrained(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        WAV2VEC2,
        **WAVES,
        through=(r"attention$", r"feed_forward$"),
    ),
)
