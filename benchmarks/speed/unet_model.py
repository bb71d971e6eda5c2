"""A U-Net of SDXL's shape: residual blocks, cross attention, skips."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

__all__ = [
    "Attended",
    "Conditions",
    "Down",
    "Head",
    "Noise",
    "Sizes",
    "UNet",
    "Up",
    "downs",
    "ups",
]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The shape of a U-Net.

    Args:
        width: Channels of the first level.
        factors: Channels of each level, in widths.
        depths: Transformer blocks after each residual block of a level.
        blocks: Residual blocks of a level on the way down; one more on the way up.
        head_width: Channels of an attention head.
        context: Width of the conditions that are attended to.
        groups: Groups of the norms.
    """

    width: int = 320
    factors: tuple[int, ...] = (1, 2, 4)
    depths: tuple[int, ...] = (0, 2, 10)
    blocks: int = 2
    head_width: int = 64
    context: int = 2048
    groups: int = 32

    @property
    def embedding(self) -> int:
        """Width of the time's embedding."""
        return 4 * self.width


@dataclass
class Noise:
    """What the model returns."""

    logits: Tensor
    """The noise, under the name that all models of the benchmark have."""


class ResBlock(nn.Module):
    """Two convolutions; the time is added between them."""

    def __init__(self, sizes: Sizes, before: int, after: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(sizes.groups, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(sizes.embedding, after)
        self.norm2 = nn.GroupNorm(sizes.groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        same = before == after
        self.skip: nn.Module = nn.Identity() if same else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Take (samples, channels, height, width) and the embedded time."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = hidden + self.time(F.silu(time))[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        found: Tensor = hidden + self.skip(x)
        return found


class _Attention(nn.Module):
    def __init__(self, width: int, context: int, head_width: int) -> None:
        super().__init__()
        self.heads = width // head_width
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(context, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        queries = self._by_head(self.q(x))
        keys, values = map(self._by_head, self.kv(context).chunk(2, -1))
        found = F.scaled_dot_product_attention(queries, keys, values)
        joined: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return joined

    def _by_head(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return heads


class _Transformer(nn.Module):
    """Self attention, cross attention, and a gated layer of four widths."""

    def __init__(self, sizes: Sizes, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mine = _Attention(width, width, sizes.head_width)
        self.cross = _Attention(width, sizes.context, sizes.head_width)
        self.gated = nn.Linear(width, 8 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.mine(normed, normed)
        x = x + self.cross(self.norms[1](x), context)
        value, gate = self.gated(self.norms[2](x)).chunk(2, -1)
        found: Tensor = x + self.out(value * F.gelu(gate))
        return found


class Attended(nn.Module):
    """A residual block, then transformer blocks over its pixels."""

    def __init__(self, sizes: Sizes, before: int, after: int, depth: int) -> None:
        super().__init__()
        self.block = ResBlock(sizes, before, after)
        self.transformers = nn.ModuleList(
            _Transformer(sizes, after) for _ in range(depth)
        )

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Take a picture, the time and the conditions."""
        x = self.block(x, time)
        if not len(self.transformers):
            return x
        pixels = x.flatten(2).transpose(1, 2)
        for transformer in self.transformers:
            pixels = transformer(pixels, context)
        added: Tensor = pixels.transpose(1, 2).unflatten(2, x.shape[2:])
        return x + added


class Conditions(nn.Module):
    """Embeds the time, and maps the conditions to what is attended to."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width = sizes.width
        self.first = nn.Linear(sizes.width, sizes.embedding)
        self.second = nn.Linear(sizes.embedding, sizes.embedding)
        self.text = nn.Linear(sizes.context, sizes.context)

    def forward(self, times: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        """Take times (samples) and text (samples, tokens, width)."""
        half = self.width // 2
        steps = torch.arange(half, device=times.device)
        rates = torch.exp(-math.log(10000) / half * steps)
        angles = times[:, None] * rates
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(text.dtype)
        return self.second(F.silu(self.first(waves))), self.text(text)


class Down(nn.Module):
    """One block on the way down; the first of a level halves the picture before."""

    def __init__(
        self, sizes: Sizes, before: int, after: int, depth: int, *, halves: bool
    ) -> None:
        super().__init__()
        stride = nn.Conv2d(before, before, 3, stride=2, padding=1)
        self.narrower: nn.Module = stride if halves else nn.Identity()
        self.block = Attended(sizes, before, after, depth)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Take a picture, the time and the conditions."""
        found: Tensor = self.block(self.narrower(x), time, context)
        return found


class Up(nn.Module):
    """One block on the way up, which reads a skip; a level's last doubles."""

    def __init__(
        self, sizes: Sizes, before: int, after: int, depth: int, *, doubles: bool
    ) -> None:
        super().__init__()
        self.block = Attended(sizes, before, after, depth)
        same = nn.Conv2d(after, after, 3, padding=1)
        self.wider: nn.Module = same if doubles else nn.Identity()
        self.doubles = doubles

    def forward(self, x: Tensor, skip: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Take a picture, its skip, the time and the conditions."""
        x = self.block(torch.cat([x, skip], 1), time, context)
        if self.doubles:
            x = F.interpolate(x, scale_factor=2.0)
        found: Tensor = self.wider(x)
        return found


class Head(nn.Module):
    """Norm and last convolution."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(sizes.groups, sizes.width)
        self.conv = nn.Conv2d(sizes.width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the noise."""
        found: Tensor = self.conv(F.silu(self.norm(x)))
        return found


def downs(sizes: Sizes) -> list[tuple[int, int, int, bool]]:
    """Return channels before and after, depth and whether each block down halves."""
    found, before = [], sizes.width
    for level, factor in enumerate(sizes.factors):
        for index in range(sizes.blocks):
            after = factor * sizes.width
            found.append((before, after, sizes.depths[level], level > 0 and index == 0))
            before = after
    return found


def ups(sizes: Sizes) -> list[tuple[int, int, int, bool]]:
    """Return the same for the blocks up: they read the downs' results, last first."""
    skips = [sizes.width, *(after for _, after, _, _ in downs(sizes))]
    found, before = [], skips[-1]
    last = len(sizes.factors) - 1
    for level in range(last, -1, -1):
        for index in range(sizes.blocks + (level == 0)):
            after = sizes.factors[level] * sizes.width
            doubles = level > 0 and index == sizes.blocks - 1
            found.append((before + skips.pop(), after, sizes.depths[level], doubles))
            before = after
    return found


class UNet(nn.Module):
    """Predicts the noise in a latent picture."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.conditions = Conditions(sizes)
        self.first = nn.Conv2d(4, sizes.width, 3, padding=1)
        self.down = nn.ModuleList(
            Down(sizes, *each[:3], halves=each[3]) for each in downs(sizes)
        )
        width = sizes.factors[-1] * sizes.width
        self.middle = Attended(sizes, width, width, sizes.depths[-1])
        self.up = nn.ModuleList(
            Up(sizes, *each[:3], doubles=each[3]) for each in ups(sizes)
        )
        self.head = Head(sizes)

    def forward(self, latents: Tensor, times: Tensor, text: Tensor) -> Noise:
        """Take latent pictures, their times and what is known of them."""
        time, context = self.conditions(times, text)
        skips = [self.first(latents)]
        for down in self.down:
            skips += [down(skips[-1], time, context)]
        x = skips[-1]
        x = self.middle(x, time, context)
        for up in self.up:
            x = up(x, skips.pop(), time, context)
        return Noise(self.head(x))
