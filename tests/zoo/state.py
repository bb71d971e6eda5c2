"""Plain torch: weights and state in unusual places, and who else changes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from tests.zoo.behaviour import Between
from tests.zoo.entry import BATCH_NORM, Plain, images, noise

__all__ = ["ENTRIES"]


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(6, 6) / 3) for _ in range(3)
        )
        self.named = nn.ParameterDict(
            {
                "gain": nn.Parameter(torch.ones(6)),
                "bias": nn.Parameter(torch.zeros(6)),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x * self.named["gain"] + self.named["bias"]


class RootParameters(nn.Module):
    """No submodule at all: everything happens at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(6, 8) / 3)
        self.b = nn.Parameter(torch.randn(8, 6) / 3)
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(x @ self.a) @ self.b
        return F.layer_norm(h, (6,)) * self.gain + x


class Normed(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first = norm(nn.Linear(6, 8))
        self.conv = norm(nn.Conv1d(1, 3, 3, padding=1))
        self.second = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.second(self.conv(h.unsqueeze(1)).flatten(1))


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class Parametrized(nn.Module):
    """Two linear layers share a parametrized weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        parametrize.register_parametrization(self.first, "weight", Symmetric())
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached():
            return self.second(self.first(torch.tanh(self.first(x))))


class OutputHooks(nn.Module):
    """Hooks that change what goes in and what comes out, on leaves and on blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
        self.last = nn.Linear(6, 6)
        self.first.register_forward_hook(lambda module, args, out: out * 2)
        self.block.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        self.block.register_forward_hook(lambda module, args, out: out - args[0])
        self.register_forward_hook(lambda module, args, out: (out, out.mean()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


class CollectingHooks(nn.Module):
    """Hooks that put values aside, which the root picks up later."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Half() for _ in range(3))
        self.watched = ("layers.0.inner", "layers.2.inner")
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handles = [
            self.get_submodule(path).register_forward_hook(
                lambda m, a, out: seen.append(out)
            )
            for path in self.watched
        ]
        for layer in self.layers:
            x = x + layer(x)
        for handle in handles:
            handle.remove()
        return self.head(x), torch.stack(seen).pow(2).mean()


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(x)) * 2


class SideValues(nn.Module):
    """Blocks leave an auxiliary loss on themselves, read when all have run."""

    class Block(nn.Module):
        aux: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.inner(x))
            self.aux = h.pow(2).mean()
            return x + h

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for block in self.blocks:
            x = block(x)
        return {"out": x, "aux": sum(block.aux for block in self.blocks)}  # type: ignore[misc, dict-item]


class Counters(nn.Module):
    """Changes a counter, a moving average and a ring of past values."""

    steps: Tensor
    average: Tensor
    ring: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("ring", torch.zeros(4, 6))
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        if self.training:
            self.steps.add_(1)
            with torch.no_grad():
                self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
                self.ring.copy_(self.ring.roll(1, 0))
                self.ring[0] = h[0]
        return self.second(h - self.average) + self.ring.mean(0)


class MovingAverage(nn.Module):
    """Keeps an average in both modes, and reads it after it is written."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return self.second(h - self.average.to(h.dtype))


class Quantizer(nn.Module):
    """Vector quantization: straight-through gradient, codes updated in forward."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 4)
        self.register_buffer("codes", torch.randn(8, 4))
        self.decode = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encode(x)
        nearest = torch.cdist(h, self.codes).argmin(-1)
        chosen = self.codes[nearest]
        loss = (h - chosen.detach()).pow(2).mean()
        if self.training:
            hot = F.one_hot(nearest, 8).to(h.dtype)
            self.codes.data.lerp_(hot.T @ h.detach(), 0.1)
        return self.decode(h + (chosen - h).detach()) + loss


class SharedStorage(nn.Module):
    """Two parameters look at one memory."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(6, 6) / 3
        self.first = nn.Parameter(table)
        self.second = nn.Parameter(table.view(36)[:6])
        self.middle = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.first)
        return self.middle(h) * self.second


class TwoNames(nn.Module):
    """One module registered twice, and one parameter under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.middle = nn.Linear(6, 6)
        self.right = self.left
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.middle.weight
        self.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.right(self.middle(self.left(x)))
        return self.tied(h) + h @ self.weight


class NoParameters(nn.Module):
    """Modules without parameters between those that have some."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Sequential(nn.Flatten(), nn.Softmax(-1), nn.Identity())
        self.first = nn.Linear(48, 6)
        self.shuffle = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.ChannelShuffle(2))
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shuffle(self.first(self.pre(x)).unsqueeze(-1)).sum(-1))


class Unused(nn.Module):
    """Parts that no forward reaches, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.frozen(self.first(x))))


class FrozenStart(nn.Module):
    """A frozen, eval-mode backbone under a trained head (transfer learning)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)
        )
        self.backbone.requires_grad_(False).eval()
        self.head = nn.Sequential(
            nn.Flatten(), nn.LazyLinear(6), nn.Dropout(0.5), nn.Linear(6, 3)
        )
        self.head(torch.zeros(1, 4 * 6 * 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class PythonCache(nn.Module):
    """Keeps a table by length in a Python dict."""

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            length = x.shape[1]
            if length not in self.tables:
                self.tables[length] = torch.arange(length, dtype=x.dtype).cos()
            return x * self.tables[length][:, None]

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.rotary = self.Rotary()
        self.second = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.rotary(self.first(x))
        return self.rotary(self.second(h))


class Vmapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.weights = nn.Parameter(torch.randn(3, 6, 6) / 3)
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        many = torch.vmap(lambda weight: torch.tanh(h @ weight))(self.weights)
        return self.head(many.sum(0))


POWER = "its power iteration multiplies bfloat16 weights by float32 buffers"

ENTRIES = (
    Plain(
        "vmap",
        lambda: Between(Vmapped()),
        leaves={"inner": "torch.vmap"},
    ),
    Plain("parameter list and dict", Lists),
    Plain("parameters at the root", RootParameters),
    Plain("weight norm", lambda: Normed(parametrizations.weight_norm)),
    Plain(
        "spectral norm", lambda: Normed(parametrizations.spectral_norm), no_bf16=POWER
    ),
    Plain("old weight norm", lambda: Normed(nn.utils.weight_norm)),
    Plain("old spectral norm", lambda: Normed(nn.utils.spectral_norm), no_bf16=POWER),
    Plain("cached parametrization", Parametrized),
    Plain("hooks that change outputs", OutputHooks),
    Plain("hooks that collect", CollectingHooks),
    Plain("values left by the side", SideValues),
    Plain("moving average", MovingAverage),
    Plain(
        "buffers changed in train mode",
        lambda: Between(Counters()),
        samples=4,
        leaves={"inner": "train and eval mode differ"},
        no_bf16=BATCH_NORM,
    ),
    Plain(
        "vector quantizer",
        lambda: Between(Quantizer()),
        leaves={"inner": "train and eval mode differ"},
        no_bf16="torch.cdist has no bfloat16",
    ),
    Plain("two parameters in one storage", SharedStorage),
    Plain("one module under two names", TwoNames),
    Plain("no parameters", NoParameters, inputs=lambda n, _: images(n, 4)),
    Plain("unused and frozen parts", Unused),
    Plain(
        "frozen backbone",
        FrozenStart,
        inputs=lambda n, _: images(n, 8),
        no_bf16=BATCH_NORM,
    ),
    Plain("python cache", PythonCache, length=8, inputs=lambda n, t: noise(n, t, 6)),
)
