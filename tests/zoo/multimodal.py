"""transformers: models that read images and text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import VOCABULARY, Transformer, images, padding, tokens
from tests.zoo.libraries import needs

__all__ = ["ENTRIES"]

SIDE = 16
PATCH = 8
PATCHES = (SIDE // PATCH) ** 2
WORDS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PICTURE = {
    "image_size": SIDE,
    "patch_size": PATCH,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
IMAGE_TOKEN = 2
"""No token that ``tokens`` gives: it stands where an image's features go."""


def _clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config={**WORDS, "attention_dropout": 0.1},
        vision_config={**PICTURE, "attention_dropout": 0.1},
        projection_dim=24,
    )
    return CLIPModel(config).train()


def _clip_inputs(samples: int, length: int) -> dict[str, Any]:
    ids = tokens(samples, length)
    ids[:, -1] = WORDS["eos_token_id"]
    return {
        "input_ids": ids,
        "pixel_values": images(samples, SIDE),
        "attention_mask": torch.ones_like(ids),
        "return_loss": True,
    }


def _llava() -> nn.Module:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    config = LlavaConfig(
        text_config=LlamaConfig(**WORDS, num_key_value_heads=2),
        vision_config=CLIPVisionConfig(**PICTURE),
        image_token_id=IMAGE_TOKEN,
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config).train()


def _with_image(samples: int, length: int, patches: int) -> Tensor:
    ids = tokens(samples, length)
    ids[:, 1 : 1 + patches] = IMAGE_TOKEN
    return ids


def _llava_inputs(samples: int, length: int) -> dict[str, Any]:
    ids = _with_image(samples, length, PATCHES)
    return {
        "input_ids": ids,
        "pixel_values": images(samples, SIDE),
        "attention_mask": padding(samples, length),
        "labels": ids,
    }


ENTRIES = (
    needs(
        "transformers",
        "CLIPModel",
        Transformer(
            "clip",
            _clip,
            inputs=_clip_inputs,
            length=12,
            through=(r"vision.*attn$", r"vision.*mlp$", r"text.*attn$"),
        ),
    ),
    needs(
        "transformers",
        "LlavaForConditionalGeneration",
        Transformer(
            "llava",
            _llava,
            inputs=_llava_inputs,
            length=12,
            fixed_batch="unbind",  # the output lists the features image by image
            through=(r"vision.*attn$", r"language.*attn$", r"language.*mlp$"),
        ),
    ),
)
