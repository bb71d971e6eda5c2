"""diffusers: U-Nets, diffusion transformers and autoencoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry, Missing, generator, images, noise
from tests.zoo.libraries import needs

__all__ = ["ENTRIES"]

MODES = "train and eval mode differ"
SIDE = 8
"""Height and width of the latents."""


def diffuser(
    name: str,
    model: str,
    sizes: Mapping[str, Any],
    inputs: Callable[[int, int], Any],
    **more: Any,
) -> Entry | Missing:
    """An entry for a model of diffusers, with random weights.

    Args:
        name: The entry's name.
        model: Name of the model's class.
        sizes: What it is made with.
        inputs: As in ``Entry``.
        more: Further fields of the entry.
    """

    def build() -> nn.Module:
        import diffusers

        return _awake(getattr(diffusers, model)(**sizes).train())

    return needs(
        "diffusers", model, Entry(name=name, build=build, inputs=inputs, **more)
    )


def _awake(model: nn.Module) -> nn.Module:
    """Give weights that begin at zero other values: nothing would depend on them."""
    draw = generator("awake")
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model


def times(samples: int) -> Tensor:
    """Return a time step for each sample."""
    return torch.randint(0, 1000, (samples,), generator=generator("times", samples))


UNET = {
    "sample_size": SIDE,
    "block_out_channels": (8, 8),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": 4,
    "cross_attention_dim": 12,
    "dropout": 0.1,
}
"""Stable Diffusion's U-Net, small."""
UNET_XL = UNET | {
    "block_out_channels": (8,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("CrossAttnUpBlock2D",),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 6 * 4 + 10,
    "use_linear_projection": True,
}
"""SDXL's: linear projections around attention, and further conditions."""
BLOCKS = (r"attn1$", r"\.ff$")


def unet_inputs(samples: int, length: int) -> dict[str, Any]:
    return {
        "sample": images(samples, SIDE, channels=4),
        "timestep": times(samples),
        "encoder_hidden_states": noise(samples, length, 12),
    }


def unet_xl_inputs(samples: int, length: int) -> dict[str, Any]:
    conditions = {
        "text_embeds": noise(samples, 10),
        "time_ids": torch.full((samples, 6), 64.0),
    }
    return unet_inputs(samples, length) | {"added_cond_kwargs": conditions}


def dit_inputs(samples: int, length: int) -> dict[str, Any]:
    return {
        "hidden_states": images(samples, SIDE, channels=4),
        "timestep": times(samples),
        "class_labels": times(samples) % 10,
    }


def sd3_inputs(samples: int, length: int) -> dict[str, Any]:
    return {
        "hidden_states": images(samples, SIDE, channels=4),
        "encoder_hidden_states": noise(samples, length, 12),
        "pooled_projections": noise(samples, 10),
        "timestep": times(samples),
    }


def flux_inputs(samples: int, length: int) -> dict[str, Any]:
    places = torch.arange(SIDE)
    grid = torch.cartesian_prod(places, places).float()
    return {
        "hidden_states": noise(samples, SIDE * SIDE, 4),
        "encoder_hidden_states": noise(samples, length, 12),
        "pooled_projections": noise(samples, 10),
        "timestep": times(samples) / 1000,
        "img_ids": torch.nn.functional.pad(grid, (1, 0)),
        "txt_ids": torch.zeros(length, 3),
        "guidance": torch.full((samples,), 3.5),
    }


ENTRIES = (
    diffuser(
        "stable diffusion u-net",
        "UNet2DConditionModel",
        UNET,
        unet_inputs,
        length=6,
        through=BLOCKS,
    ),
    diffuser(
        "sdxl u-net",
        "UNet2DConditionModel",
        UNET_XL,
        unet_xl_inputs,
        length=7,
        through=BLOCKS,
    ),
    diffuser(
        "dit",
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "in_channels": 4,
            "sample_size": SIDE,
            "num_embeds_ada_norm": 10,
            "dropout": 0.1,
        },
        dit_inputs,
        through=BLOCKS,
        leaves={
            f"transformer_blocks.{block}.norm1.emb.class_embedder": MODES
            for block in range(2)
        },  # it draws which labels to drop, in train mode only
    ),
    diffuser(
        "stable diffusion 3",
        "SD3Transformer2DModel",
        {
            "sample_size": SIDE,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 12,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 10,
            "pos_embed_max_size": 8,
            "qk_norm": "rms_norm",
        },
        sd3_inputs,
        length=6,
        through=(r"attn$", r"\.ff$"),
    ),
    diffuser(
        "flux",
        "FluxTransformer2DModel",
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 12,
            "pooled_projection_dim": 10,
            "guidance_embeds": True,
            "axes_dims_rope": (4, 2, 2),
        },
        flux_inputs,
        length=6,
        through=(r"attn$", r"\.ff$"),
    ),
    diffuser(
        "autoencoder kl",
        "AutoencoderKL",
        {
            "block_out_channels": (16, 16),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "norm_num_groups": 4,
        },
        lambda n, _: {"sample": images(n, SIDE), "sample_posterior": True},
        through=(r"attentions\.0$",),
    ),
)
