"""Models with shared weights and buffers, and with parameters of unusual kinds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.entry import Entry, Plain, Transformer, images, tokens

__all__ = ["ENTRIES", "Woven"]

WORDS, WIDTH = 11, 8


class Mixer(nn.Module):
    """Half of what it computes with is shared with others."""

    def __init__(self, shared: nn.Linear, frozen: nn.Parameter) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, 2 * WIDTH)
        self.back = nn.Linear(2 * WIDTH, WIDTH)
        self.shared = shared
        self.frozen = frozen
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.back(torch.relu(self.own(x))))
        h = self.shared(h) * self.gain + F.linear(h, self.frozen)
        return x + torch.tanh(h)


class Woven(nn.Module):
    """Four tied groups: a table, a layer of three blocks, a frozen weight, a scalar.

    A wholly frozen layer runs in the middle, and a table of numbers is read by all.
    """

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        shared = nn.Linear(WIDTH, WIDTH)
        frozen = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4, requires_grad=False)
        self.blocks = nn.ModuleList(Mixer(shared, frozen) for _ in range(3))
        self.blocks[2].gain = self.blocks[0].gain
        self.still = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.embed.weight
        self.register_buffer("places", torch.randn(WIDTH))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        x = x + self.places.to(x.dtype)
        for number, block in enumerate(self.blocks):
            x = block(x) * self.places.sigmoid().to(x.dtype)
            if number == 1:
                x = x + self.still(x)
        return self.head(self.norm(x))


class SparseGradients(nn.Module):
    """Two tables of which only the rows that were read get a gradient; one is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.places = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places(input_ids.flip(-1))
        return self.head(self.second(torch.tanh(self.first(x))))


class SharedStatistics(nn.Module):
    """Batch statistics: one layer's twice in a forward, and a counter of two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.second = nn.Linear(12, 12)
        self.third = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12, momentum=None))
        self.still = nn.BatchNorm1d(12).eval()
        self.last = nn.Linear(12, 6)
        # Read by both, written by none.
        self.register_buffer("scale", torch.rand(12) + 0.5)
        self.third.register_buffer("scale", self.scale)

    scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        norm = self.first[1]
        h = self.second(self.first(x) * self.scale)
        h = self.third(torch.relu(norm(h)))
        return self.last(self.still(h * self.third.get_buffer("scale")))


class Unusual(nn.Module):
    """Parameters that are scalars, out of order in memory, double and complex."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        kernels = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.conv.weight.data = kernels
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.turned = nn.Parameter(torch.randn(6, 4).t() / 2)
        self.wide = nn.Linear(6, 6).double()
        self.spectrum = nn.Parameter(torch.randn(4, 4, dtype=torch.cfloat) / 4)
        self.cool = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.conv(x)).mean((2, 3)) * self.gain @ self.turned
        h = torch.fft.rfft(self.wide(h.double())) @ self.spectrum.to(torch.cdouble)
        return self.head(torch.fft.irfft(h, n=6).float() * self.cool)


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Transformer(
            "woven",
            Woven,
            length=5,
            inputs=lambda n, length: {"input_ids": tokens(n, length) % WORDS},
        ),
        Transformer(
            "sparse gradients",
            SparseGradients,
            length=5,
            inputs=lambda n, length: {"input_ids": tokens(n, length) % WORDS},
        ),
        Plain("shared statistics", SharedStatistics, samples=4),
        Plain("unusual parameters", Unusual, inputs=lambda n, _: images(n, 6)),
    )
}
