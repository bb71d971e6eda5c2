"""Plain torch: regions, effects, randomness, custom gradients, compiled parts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo.entry import Plain, images, noise

__all__ = ["ENTRIES"]


class Between(nn.Module):
    """Two linear layers with a habit between them, as a submodule."""

    def __init__(self, inner: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, width))
        self.inner = inner
        self.after = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


class Swish(torch.autograd.Function):
    """Two outputs, saved tensors, and a non-differentiable result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(gain * x)
        ctx.save_for_backward(x, gain, gate)
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return x * gate, positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        x, gain, gate = ctx.saved_tensors
        slope = gate * (1 - gate)
        return gradient * (gate + gain * x * slope), (gradient * x * x * slope).sum()


class CustomGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.ones(()))
        self.domain = nn.Linear(6, 2)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, positive = Swish.apply(self.first(x), self.gain)
        return self.second(h * positive), self.domain(Reverse.apply(h, 0.5))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(torch.relu(self.up(x))))


class Checkpoints(nn.Module):
    """Recomputes by itself, in both ways, and a plain function as well."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.blocks[0], x, use_reentrant=False)
        h = checkpoint(self.blocks[1], h, use_reentrant=True)
        h = checkpoint(lambda y: self.blocks[2](y).tanh(), h, use_reentrant=False)
        return self.head(h)


class Compiled(nn.Module):
    """A part compiled by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
        inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.inner = torch.compile(inner, backend="eager")
        self.after = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class Regions(nn.Module):
    """Autocast, no_grad, enable_grad inside it, detach."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.teacher = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.first(x)
            h = torch.relu(h @ h.T @ h)
            with torch.autocast("cpu", enabled=False):
                h = self.second(h.float())
        with torch.no_grad():
            target = self.teacher(h)
            with torch.enable_grad():
                pull = self.second(h.detach() + target)
        return h - target, pull.pow(2).mean()


class InPlace(nn.Module):
    """Writes through views, slices, masks, and out= arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.third = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 1
        left, right = h[:, :3], h[:, 3:]
        left.mul_(2)
        early = self.second(h * 2)
        h[:, 1::2] += 1
        right.masked_fill_(right < 0, 0.5)
        h.relu_()
        out = torch.zeros_like(early)
        out[:, :3] = early[:, 3:]
        out[:, 3:].copy_(h[:, :3])
        out.index_add_(1, torch.arange(2, device=x.device), early[:, :2])
        return self.third(out) + h


class ComplexRotary(nn.Module):
    freqs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        angles = torch.outer(torch.arange(32.0), 1e2 ** -torch.arange(0, 1, 0.25))
        self.register_buffer("freqs", torch.polar(torch.ones(32, 4), angles))

    def _turn(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = pairs * self.freqs[: x.shape[1]]
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self._turn(self.query(x)), self._turn(self.key(x))
        return self.head((q @ k.transpose(1, 2)).softmax(-1) @ x)


class Spectral(nn.Module):
    """Complex values between layers: a Fourier layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 8)
        self.weight = nn.Parameter(torch.randn(5, 5, dtype=torch.cfloat) / 5)
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.rfft(self.lift(x), dim=-1)
        h = h @ self.weight
        h = torch.complex(h.real.tanh(), h.imag)
        return self.head(torch.fft.irfft(h, n=8, dim=-1))


class Einops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4)
        self.qkv = nn.Linear(48, 48)
        self.token = nn.Parameter(torch.zeros(1, 1, 48))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x)
        token = repeat(self.token, "1 1 d -> b 1 d", b=h.shape[0])
        h = self.qkv(torch.cat([token, h], 1))
        q, k, v = rearrange(h, "b n (three h d) -> three b h n d", three=3, h=4)
        h = F.scaled_dot_product_attention(q, k, v)
        return self.head(rearrange(h, "b h n d -> b n (h d)")[:, 0])


class TorchNoise(nn.Module):
    """Draws from torch in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x)
        scale = 0.1 if self.training else 0.0
        h = h + scale * torch.randn_like(h)
        order = torch.randperm(6)
        h = h[:, order] + torch.normal(0.0, 1.0, size=(6,)).to(h.dtype) * h.std()
        keep = torch.bernoulli(torch.full_like(h, 0.9))
        sampled = F.gumbel_softmax(h, hard=True)
        picked = torch.multinomial(h.softmax(-1).detach(), 2)
        return self.second(h * keep + sampled), h.gather(1, picked)


class HostNoise(nn.Module):
    """Draws from numpy and from Python."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.rand(6)).to(x.dtype)
        return x * noise + random.random()


class StochasticDepth(nn.Module):
    """Drops whole blocks on Python's say, as LayerDrop does."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.layerdrop = 0.3

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                if self.training and torch.rand([]) < self.layerdrop:
                    continue
                x = block(x)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
        self.layers = self.Layers()
        self.after = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layers(self.before(x)))


class OwnGenerator(nn.Module):
    """Draws from a generator of its own, always with the same seed."""

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        fixed = torch.randn(6, generator=generator)
        return x * fixed.to(x.dtype)


class StraightThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        hard = (h > 0).to(h.dtype)
        return self.second(hard + h - h.detach()) * h.sigmoid().detach()


class DirectForward(nn.Module):
    """Calls forward() and other methods of submodules, past their call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = Block()
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block.forward(self.first.forward(x))
        return F.linear(h, self.second.weight, bias=self.second.bias)


class Mean(nn.Module):
    """Python reads a value: a leaf."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().max().item() + 1.0)


class Unusual(nn.Module):
    """Operators with several results, integer results, and results of odd kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        values, order = h.sort(-1, descending=True)
        best, where = h.max(-1)
        _, s, _ = torch.linalg.svd(h.T @ h + torch.eye(6, device=x.device))
        parts = torch.tensor_split(values, 3, -1)
        a, *rest = values.unbind(-1)
        out = torch.stack([part.sum(-1) for part in parts], -1).repeat(1, 2)
        out = out + best[:, None] + order + where.unsqueeze(-1) + s + a[:, None]
        return self.second(out + sum(rest)[:, None])


ENTRIES = (
    Plain("custom gradients", CustomGradients),
    Plain("recomputes by itself", Checkpoints),
    Plain("compiled part", Compiled),
    Plain("regions", Regions, no_bf16="it calls a layer on float32 by hand"),
    Plain("in-place and views", InPlace),
    Plain(
        "complex rotary", ComplexRotary, length=9, inputs=lambda n, t: noise(n, t, 8)
    ),
    Plain("complex layer", Spectral, no_bf16="torch has no complex bfloat16"),
    Plain("einops", Einops, inputs=lambda n, _: images(n)),
    Plain("torch noise", TorchNoise),
    Plain("host noise", lambda: Between(HostNoise()), leaves={"inner": "draws"}),
    Plain("stochastic depth", StochasticDepth, leaves={"layers": "random"}),
    Plain(
        "own generator", lambda: Between(OwnGenerator()), leaves={"inner": "Generator"}
    ),
    Plain("straight through", StraightThrough),
    Plain("direct forward", DirectForward),
    Plain("python reads a value", lambda: Between(Mean()), leaves={"inner": "item"}),
    Plain("unusual operators", Unusual, samples=4, no_bf16="svd has no bfloat16"),
)
