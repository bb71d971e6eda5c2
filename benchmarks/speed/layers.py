"""Parts that hand-written pipelines have in common, and their original weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["HandLayer", "cross_entropy", "load_original"]


class HandLayer(nn.Module):
    """A layer of a hand-written pipeline.

    Args:
        origins: Path in the original of each submodule that this layer holds, by the
            submodule's name here.
    """

    def __init__(self, **origins: str) -> None:
        super().__init__()
        self.origins = origins


def load_original(layers: Iterable[Any], file: Path) -> None:
    """Give hand-written layers the weights of the original.

    Args:
        layers: Built layers; those without ``origins`` hold no weights.
        file: The original's state, safetensors.

    Raises:
        KeyError: The original lacks a tensor of a layer.
    """
    with safe_open(file, framework="pt") as source, torch.no_grad():
        for layer in layers:
            origins = getattr(layer, "origins", {})
            for name, tensor in layer.state_dict().items():
                own, _, rest = name.partition(".")
                path = f"{origins[own]}.{rest}" if rest else origins[own]
                tensor.copy_(source.get_tensor(path))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over all labels, computed in float32."""
    classes = logits.shape[-1]
    return F.cross_entropy(logits.reshape(-1, classes).float(), labels.reshape(-1))
