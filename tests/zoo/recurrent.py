"""Plain torch: recurrent networks, attention, convolutions with branches and skips."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.entry import BATCH_NORM, Plain, images, noise, padding, tokens

__all__ = ["ENTRIES"]


class Recurrent(nn.Module):
    def __init__(
        self, kind: Callable[..., nn.Module], *, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 8)
        self.rnn = kind(
            8, 12, 2, batch_first=True, dropout=0.2, bidirectional=bidirectional
        )
        self.norm = nn.LayerNorm(12 * (1 + bidirectional))
        self.head = nn.Linear(12 * (1 + bidirectional), 5)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, last = self.rnn(self.embedding(ids))
        last = last[0] if isinstance(last, tuple) else last
        return self.head(self.norm(hidden)) + last.mean()


class Cells(nn.Module):
    """Recurrence written out in Python, over a length that Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(6, 8)
        self.gru = nn.GRUCell(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = c = g = x.new_zeros(x.shape[0], 8)
        steps = []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            steps.append(g)
        return self.head(torch.stack(steps, 1))


class Packed(nn.Module):
    """Sequences of different lengths: packing reads the lengths."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 8, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths, batch_first=True, enforce_sorted=False
            )
            out, _ = self.rnn(packed)
            padded, _ = nn.utils.rnn.pad_packed_sequence(
                out, batch_first=True, total_length=x.shape[1]
            )
            return padded

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.reader = self.Reader()
        self.after = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.after(self.reader(self.before(x), lengths))


class MaskedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        self.cross = nn.MultiheadAttention(
            16, 2, kdim=6, vdim=6, add_bias_kv=True, batch_first=True
        )
        self.head = nn.Linear(16, 4)

    def forward(
        self, x: Tensor, memory: Tensor, key_padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        h = self.norm(x)
        h, weights = self.attention(
            h, h, h, key_padding_mask=key_padding_mask, attn_mask=causal
        )
        h = x + h
        crossed, _ = self.cross(h, memory, memory, need_weights=False)
        return self.head(h + crossed), weights


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 16)
        self.transformer = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
        self.head = nn.Linear(16, 99)
        self.head.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        mask = self.transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=mask,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.head(hidden)


def _conv(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [4, 8, 16]
        self.stem = _conv(3, 4)
        self.down = nn.ModuleList(_conv(a, 2 * a, stride=2) for a in widths[:-1])
        self.middle = _conv(16, 16)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[-2::-1]
        )
        self.merge = nn.ModuleList(_conv(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        skips = []
        for down in self.down:
            skips.append(h)
            h = down(h)
        h = self.middle(h)
        for up, merge in zip(self.up, self.merge, strict=True):
            h = merge(torch.cat([skips.pop(), up(h)], 1))
        return self.head(F.interpolate(h, scale_factor=2.0))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 8)
        self.branches = nn.ModuleDict(
            {
                "one": _conv(8, 4, 1),
                "three": nn.Sequential(_conv(8, 4, 1), _conv(4, 4, 3)),
                "five": nn.Sequential(_conv(8, 4, 1), _conv(4, 4, 5)),
                "pool": nn.Sequential(nn.MaxPool2d(3, 1, 1), _conv(8, 4, 1)),
            }
        )
        self.extra = nn.Linear(8, 5)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        h = self.stem(x)
        joined = torch.cat([branch(h) for branch in self.branches.values()], 1)
        out = self.head(F.dropout(joined.mean((2, 3)), 0.4, training=self.training))
        return out, self.extra(h.mean((2, 3)))


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4, 3, 1, 1))
            for c in (3, 7, 11, 15)
        )
        self.head = nn.Linear(19, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(torch.cat(features, 1).flatten(2).mean(-1))


class Looped(nn.Module):
    """One block called several times, with its own state of weights only."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 6)
        )
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = x + self.block(self.norm(x))
        return x


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8)
        )
        self.scale = nn.Linear(1, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.tower(left), self.tower(right)
        return self.scale(F.cosine_similarity(a, b).unsqueeze(-1))


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))


class Experts(nn.Module):
    """Each expert gets the rows that the router sends to it: sizes follow data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.experts = nn.ModuleList(Mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        top, index = weights.topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(index == number)
            if rows.numel():
                found = expert(x[rows]) * top[rows, slot, None]
                out.index_add_(0, rows, found.to(out.dtype))
        return out


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))
        self.experts = Experts()
        self.after = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.experts(self.before(x)))


class DenseExperts(nn.Module):
    """Every expert sees every row; the router's weights select."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3)
        self.up = nn.Parameter(torch.randn(3, 6, 8) / 3)
        self.down = nn.Parameter(torch.randn(3, 8, 6) / 3)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x)
        kept = gates.topk(2, -1).indices
        mask = torch.full_like(gates, float("-inf")).scatter(-1, kept, 0.0)
        h = torch.einsum("bi,eio->ebo", x, self.up).relu()
        h = torch.einsum("ebi,eio->ebo", h, self.down)
        return torch.einsum("be,ebo->bo", (gates + mask).softmax(-1), h)


def _sequence(n: int, length: int) -> Tensor:
    return noise(n, length, 6)


ENTRIES = (
    Plain(
        "packed sequences",
        Packed,
        length=8,
        inputs=lambda n, t: (_sequence(n, t), torch.arange(n) % (t - 1) + 1),
        leaves={"reader": "needs the values of a tensor"},
    ),
    Plain("lstm", lambda: Recurrent(nn.LSTM), length=8, inputs=tokens),
    Plain("gru", lambda: Recurrent(nn.GRU), length=8, inputs=tokens),
    Plain(
        "bidirectional lstm",
        lambda: Recurrent(nn.LSTM, bidirectional=True),
        length=8,
        inputs=tokens,
    ),
    Plain(
        "recurrent cells",
        Cells,
        length=5,
        inputs=_sequence,
        fixed_length="stack",
    ),
    Plain(
        "multihead attention with masks",
        MaskedAttention,
        length=8,
        inputs=lambda n, t: {
            "x": noise(n, t, 16),
            "memory": noise(n, 5, 6),
            "key_padding_mask": padding(n, t) == 0,
        },
    ),
    Plain(
        "torch transformer",
        Translator,
        length=8,
        inputs=lambda n, t: (tokens(n, t), tokens(n, 6), padding(n, t) == 0),
    ),
    Plain("u-net", UNet, inputs=lambda n, _: images(n), no_bf16=BATCH_NORM),
    Plain("inception", Inception, inputs=lambda n, _: images(n), no_bf16=BATCH_NORM),
    Plain("densenet", DenseNet, inputs=lambda n, _: images(n), no_bf16=BATCH_NORM),
    Plain("one block called four times", Looped),
    Plain(
        "siamese",
        Siamese,
        inputs=lambda n, _: (noise(n, 6), noise(n, 6) + 1),
        no_bf16=BATCH_NORM,
    ),
    Plain(
        "mixture of experts",
        MixtureOfExperts,
        samples=4,
        leaves={"experts": "where needs the values of a tensor"},
    ),
    Plain("dense mixture of experts", DenseExperts, samples=4),
)
