"""transformers: models that read images and text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import VOCABULARY, Transformer, images, noise, padding, tokens
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


GRID = (1, 4, 4)
"""Frames, rows and columns of patches of one image."""
MERGED = 4
"""Features of that image: two by two patches make one."""


def _qwen() -> nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    config = Qwen2_5_VLConfig(
        text_config={**WORDS, "num_key_value_heads": 2, "rope_parameters": rope},
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "patch_size": 4,
            "window_size": 16,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [0],
        },
        image_token_id=IMAGE_TOKEN,
    )
    return Qwen2_5_VLForConditionalGeneration(config).train()


class OneGrid(nn.Module):
    """The model for images of one size: their grid is no input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _qwen()

    def forward(self, **inputs: Tensor) -> Any:
        images = len(inputs["input_ids"])
        return self.inner(**inputs, image_grid_thw=torch.tensor([GRID] * images))


def _one_grid_inputs(samples: int, length: int) -> dict[str, Any]:
    ids = _with_image(samples, length, MERGED)
    return {
        "input_ids": ids,
        "attention_mask": padding(samples, length),
        "position_ids": torch.arange(length).expand(3, samples, length),
        "pixel_values": noise(samples * math.prod(GRID), 3 * 2 * 4 * 4),
        "labels": ids,
    }


def _qwen_inputs(samples: int, length: int) -> dict[str, Any]:
    inputs = _one_grid_inputs(samples, length)
    del inputs["position_ids"]
    types = (inputs["input_ids"] == IMAGE_TOKEN).int()
    grid = torch.tensor([GRID] * samples)
    return {**inputs, "image_grid_thw": grid, "mm_token_type_ids": types}


ENTRIES = (
    needs(
        "transformers",
        "CLIPModel",
        Transformer(
            "clip",
            _clip,
            inputs=_clip_inputs,
            length=14,
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
            length=14,
            fixed_batch="unbind",  # the output lists the features image by image
            through=(r"vision.*attn$", r"language.*attn$", r"language.*mlp$"),
        ),
    ),
    needs(
        "transformers",
        "Qwen2_5_VLForConditionalGeneration",
        Transformer(
            "qwen-2.5-vl",
            _qwen,
            inputs=_qwen_inputs,
            length=14,
            other_length=10,  # no image token is masked
            fixed_batch="needs the values of a tensor",
            through=(),
            leaves={"model": "reads the value of a tensor"},
            heavy_leaf="Python reads the images' grid, an input, to split by image",
        ),
    ),
    needs(
        "transformers",
        "Qwen2_5_VLForConditionalGeneration",
        Transformer(
            "qwen-2.5-vl at one image size",
            OneGrid,
            inputs=_one_grid_inputs,
            length=14,
            fixed_batch="broadcast",  # images have another dimension than the batch
            through=(r"visual.*attn$", r"language.*attn$", r"language.*mlp$"),
        ),
    ),
)
