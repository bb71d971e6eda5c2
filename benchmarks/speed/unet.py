"""A U-Net whose hand-written layers hand on skips and conditions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from deepspeed.pipe import LayerSpec
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from benchmarks.speed.layers import HandLayer
from benchmarks.speed.unet_model import (
    Attended,
    Conditions,
    Down,
    Head,
    Sizes,
    UNet,
    Up,
    downs,
    ups,
)
from benchmarks.speed.workloads import MicroBatch, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["sdxl_unet"]

_Carried = tuple[Tensor, ...]
"""The picture, the time, the conditions, and the skips that are still to be read."""


class _First(HandLayer):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(conditions="conditions", first="first")
        self.conditions = Conditions(sizes)
        self.first = nn.Conv2d(4, sizes.width, 3, padding=1)

    def forward(self, inputs: _Carried) -> _Carried:
        latents, times, text = inputs
        time, context = self.conditions(times, text)
        x = self.first(latents)
        return x, time, context, x


class _Down(HandLayer):
    def __init__(self, make: Callable[[], nn.Module], path: str) -> None:
        super().__init__(part=path)
        self.part = make()

    def forward(self, carried: _Carried) -> _Carried:
        x, time, context, *skips = carried
        x = self.part(x, time, context)
        return x, time, context, *skips, x


class _Middle(_Down):
    def forward(self, carried: _Carried) -> _Carried:
        x, time, context, *skips = carried
        return self.part(x, time, context), time, context, *skips


class _Up(_Down):
    def forward(self, carried: _Carried) -> _Carried:
        x, time, context, *skips, skip = carried
        return self.part(x, skip, time, context), time, context, *skips


class _Head(HandLayer):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(head="head")
        self.head = Head(sizes)

    def forward(self, carried: _Carried) -> Tensor:
        noise: Tensor = self.head(carried[0])
        return noise


def sdxl_unet(*, tiny: bool, dtype: torch.dtype) -> Workload:  # noqa: ARG001 - as all
    """SDXL's U-Net in shape; pictures of 1024 x 1024."""
    small = Sizes(
        width=8, factors=(1, 2), depths=(0, 1), head_width=8, context=12, groups=4
    )
    sizes = small if tiny else Sizes()
    samples, side, tokens = (2, 16, 5) if tiny else (4, 128, 77)
    return Workload(
        name="sdxl-unet",
        model=partial(UNet, sizes),
        layers=lambda: _layers(sizes),
        micro_batch=lambda: _noised(sizes, samples, side, tokens),
        loss=_squared_error,
        items=samples,
        unit="images",
        torch_pipelines=False,
    )


def _layers(sizes: Sizes) -> list[LayerSpec]:
    width = sizes.factors[-1] * sizes.width
    down = [
        partial(Down, sizes, *most, halves=halves) for *most, halves in downs(sizes)
    ]
    up = [partial(Up, sizes, *most, doubles=doubles) for *most, doubles in ups(sizes)]
    middle = partial(Attended, sizes, width, width, sizes.depths[-1])
    return [
        LayerSpec(_First, sizes),
        *(LayerSpec(_Down, make, f"down.{i}") for i, make in enumerate(down)),
        LayerSpec(_Middle, middle, "middle"),
        *(LayerSpec(_Up, make, f"up.{i}") for i, make in enumerate(up)),
        LayerSpec(_Head, sizes),
    ]


def _noised(sizes: Sizes, samples: int, side: int, tokens: int) -> MicroBatch:
    latents = torch.randn(samples, 4, side, side)
    inputs = {
        "latents": latents.to(memory_format=torch.channels_last),
        "times": torch.randint(1000, (samples,)),
        "text": torch.randn(samples, tokens, sizes.context),
    }
    return inputs, torch.randn(samples, 4, side, side)


def _squared_error(noise: Tensor, wanted: Tensor) -> Tensor:
    return F.mse_loss(noise.float(), wanted.float())
