"""Image classifiers: a stem, blocks and a head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from deepspeed.pipe import LayerSpec
from torch import Tensor, nn
from transformers.models.resnet import modeling_resnet
from transformers.models.vit import modeling_vit

from benchmarks.speed.layers import HandLayer, cross_entropy
from benchmarks.speed.workloads import MicroBatch, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["resnet_152", "vit_large"]

_CLASSES = 1000


class _Part(HandLayer):
    """One module of the original, as it is.

    Args:
        make: Makes it.
        path: Where it is in the original.
        dtype: Of its parameters and its statistics.
    """

    def __init__(
        self, make: Callable[[], nn.Module], path: str, dtype: torch.dtype
    ) -> None:
        super().__init__(part=path)
        self.part = make().to(dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.part(hidden)
        return found if isinstance(found, Tensor) else found[0]


class _ResNetHead(HandLayer):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__(classifier="classifier")
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        linear = nn.Linear(width, _CLASSES)
        self.classifier = nn.Sequential(nn.Flatten(), linear).to(dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(hidden))
        return logits


class _VitHead(HandLayer):
    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        super().__init__(layernorm="vit.layernorm", classifier="classifier")
        width = config.hidden_size
        self.layernorm = nn.LayerNorm(width, eps=config.layer_norm_eps).to(dtype)
        self.classifier = nn.Linear(width, _CLASSES).to(dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.layernorm(hidden)[:, 0, :])
        return logits


def resnet_152(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """ResNet-152; batch statistics in the dtype of the rest."""
    sizes = {"depths": [3, 8, 36, 3]}
    small = {
        "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 3],
    }  # fmt: skip
    config = transformers.ResNetConfig(
        **(small if tiny else sizes), num_labels=_CLASSES
    )
    samples, side = (4, 32) if tiny else (128, 224)
    return Workload(
        name="resnet-152",
        torch_pipelines=False,
        model=lambda: modeling_resnet.ResNetForImageClassification(config).to(dtype),
        layers=lambda: _resnet_layers(config, dtype),
        micro_batch=partial(_images, samples, side),
        loss=cross_entropy,
        items=samples,
        unit="images",
    )


def _resnet_layers(config: Any, dtype: torch.dtype) -> list[LayerSpec]:
    specs = [
        LayerSpec(
            _Part,
            partial(modeling_resnet.ResNetEmbeddings, config),
            "resnet.embedder",
            dtype,
        )
    ]
    before = config.embedding_size
    pairs = zip(config.hidden_sizes, config.depths, strict=True)
    for stage, (width, depth) in enumerate(pairs):
        for index in range(depth):
            block = partial(
                modeling_resnet.ResNetBottleNeckLayer,
                before,
                width,
                stride=2 if stage > 0 and index == 0 else 1,
                activation=config.hidden_act,
                downsample_in_bottleneck=config.downsample_in_bottleneck,
            )
            path = f"resnet.encoder.stages.{stage}.layers.{index}"
            specs.append(LayerSpec(_Part, block, path, dtype))
            before = width
    return [*specs, LayerSpec(_ResNetHead, before, dtype)]


def vit_large(*, tiny: bool, dtype: torch.dtype) -> Workload:
    """ViT-L/16."""
    sizes = {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096,
    }  # fmt: skip
    small = {
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 128, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    config = transformers.ViTConfig(
        **(small if tiny else sizes),
        num_labels=_CLASSES,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    samples, side = (4, 32) if tiny else (64, 224)
    return Workload(
        name="vit-large",
        torch_pipelines=False,
        model=partial(modeling_vit.ViTForImageClassification, config),
        layers=lambda: _vit_layers(config, dtype),
        micro_batch=partial(_images, samples, side),
        loss=cross_entropy,
        items=samples,
        unit="images",
    )


def _vit_layers(config: Any, dtype: torch.dtype) -> list[LayerSpec]:
    with torch.device("meta"):
        model = modeling_vit.ViTForImageClassification(config)
    # Where they are has changed between versions of the library.
    paths = [
        name
        for name, module in model.named_modules()
        if isinstance(module, modeling_vit.ViTLayer)
    ]
    stem = partial(modeling_vit.ViTEmbeddings, config)
    block = partial(modeling_vit.ViTLayer, config)
    return [
        LayerSpec(_Part, stem, "vit.embeddings", dtype),
        *(LayerSpec(_Part, block, path, dtype) for path in paths),
        LayerSpec(_VitHead, config, dtype),
    ]


def _images(samples: int, side: int) -> MicroBatch:
    pixels = torch.randn(samples, 3, side, side)
    images = pixels.to(memory_format=torch.channels_last)
    return {"pixel_values": images}, torch.randint(_CLASSES, (samples,))
