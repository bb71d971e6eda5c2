"""Image models: transformers, convolutions, and both."""

from __future__ import annotations

from typing import Any

from tests.zoo.entry import BATCH_NORM, Pretrained, images

VIT = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
DINO = VIT | {"drop_path_rate": 0.1, "mlp_ratio": 2}
SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "drop_path_rate": 0.0,
}
CONVNEXT = {
    "num_stages": 2,
    "hidden_sizes": [8, 16],
    "depths": [1, 2],
    "drop_path_rate": 0.2,
}
SEGFORMER = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [4, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 16,
    "drop_path_rate": 0.1,
    "num_labels": 5,
}
RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [16, 32],
    "depths": [2, 2],
    "layer_type": "bottleneck",
}


def vision(name: str, prefix: str, config: Any, size: int, **more: Any) -> Any:
    """An entry for ``<prefix>ForImageClassification``, or another head.

    Args:
        name: The entry's name.
        prefix: What the classes' names begin with.
        config: Settings of the configuration.
        size: Height and width of the images.
        more: Further fields of the entry.
    """
    head = more.pop("head", "ImageClassification")
    fields = {"inputs": lambda n, _: {"pixel_values": images(n, size)}, "length": None}
    classes = f"{prefix}For{head}", f"{prefix}Config"
    return Pretrained(name, *classes, config, **(fields | more))


def drop_paths(*paths: str) -> dict[str, str]:
    """Blocks that are left out by chance, in train mode."""
    return {f"{path}.drop_path": "train and eval mode differ: rand" for path in paths}


LAST_SHIFT = {"swin.encoder.layers.1.blocks.1": "shift_size"}
"""Where the window is as large as the image, it is shifted no more: from then on."""

ENTRIES = (
    vision("vit", "ViT", VIT, 16),
    vision(
        "dinov2",
        "Dinov2",
        DINO,
        16,
        leaves=drop_paths("dinov2.encoder.layer.0", "dinov2.encoder.layer.1"),
    ),
    vision("swin", "Swin", SWIN, 32, leaves=LAST_SHIFT),
    vision(
        "convnext-v2",
        "ConvNextV2",
        CONVNEXT,
        32,
        leaves=drop_paths(
            "convnextv2.encoder.stages.1.layers.0",
            "convnextv2.encoder.stages.1.layers.1",
        ),
        through=(),
    ),
    vision(
        "segformer",
        "Segformer",
        SEGFORMER,
        32,
        head="SemanticSegmentation",
        leaves=drop_paths("segformer.stages.1.blocks.0"),
        no_bf16=BATCH_NORM,
    ),
    vision("resnet", "ResNet", RESNET, 32, through=(), no_bf16=BATCH_NORM),
)
