"""Configurations of small models of transformers, written as users have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

__all__ = ["CONFIGURATIONS", "write"]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WORDS = SIZES | {"vocab_size": 99, "max_position_embeddings": 24}
PICTURES = SIZES | {"image_size": 32, "patch_size": 16}
SPEECH = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 99,
    "max_source_positions": 20,
    "max_target_positions": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
T5 = {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 4, "vocab_size": 99}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, "vocab_size": 99}

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", WORDS | IDS | {"dtype": "bfloat16"}),
    "GPT2LMHeadModel": ("GPT2Config", GPT2 | IDS),
    "RobertaForTokenClassification": ("RobertaConfig", WORDS),
    "BertForSequenceClassification": ("BertConfig", WORDS),
    "BertForQuestionAnswering": ("BertConfig", WORDS),
    "BertForMultipleChoice": ("BertConfig", WORDS),
    "BertModel": ("BertConfig", WORDS),
    "T5ForConditionalGeneration": ("T5Config", T5),
    "ViTForImageClassification": ("ViTConfig", PICTURES),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),
    "VideoMAEForVideoClassification": ("VideoMAEConfig", PICTURES | {"num_frames": 4}),
    "CLIPModel": ("CLIPConfig", {"text_config": WORDS, "vision_config": PICTURES}),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        SPEECH | {"num_mel_bins": 8, "suppress_tokens": None},
    ),
    "Speech2TextForConditionalGeneration": (
        "Speech2TextConfig",
        SPEECH | {"input_feat_per_channel": 8},
    ),
    "Wav2Vec2ForCTC": (
        "Wav2Vec2Config",
        SIZES | {"layerdrop": 0.0, "apply_spec_augment": False},
    ),
    "ASTForAudioClassification": (
        "ASTConfig",
        SIZES | {"max_length": 64, "num_mel_bins": 32},
    ),
    "PatchTSTForPrediction": ("PatchTSTConfig", {}),
}
"""Class → its configuration's class and sizes."""


def write(folder: Path, name: str, *, architectures: bool = True) -> Path:
    """Write a model's ``config.json`` into a folder, and return the folder.

    Args:
        folder: Where to; made if it is missing.
        name: Of ``CONFIGURATIONS``.
        architectures: The file names the class, as ``save_pretrained`` writes it.
    """
    kind, settings = CONFIGURATIONS[name]
    config = getattr(transformers, kind)(**settings)
    config.architectures = [name] if architectures else None
    config.save_pretrained(folder)
    return folder
