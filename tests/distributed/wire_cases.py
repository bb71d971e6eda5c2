"""Values of every kind, across each boundary of one to four stages."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.distributed.case_parts import ROWS, WIDTH, Parts, supervised, vectors
from tests.distributed.training import Case, Part

__all__ = ["every_kind", "mixed"]

MANY = 60
"""Tensors of three dimensions; DeepSpeed's own messages describe 50 at most."""
NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16)


class Counted(nn.Module):
    """Counts how often a gradient comes back to its trunk: once per micro-batch."""

    visits: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("visits", torch.zeros((), dtype=torch.int64))

    def trunk(self, x: Tensor) -> Tensor:
        result = torch.tanh(self.linear(x))
        if result.requires_grad:
            result.register_hook(self._count)
        return result

    def _count(self, gradient: Tensor) -> None:
        self.visits.data.add_(1)


class Sends(Counted):
    """Makes values of all kinds of its trunk."""

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        h = self.trunk(x)
        still = h.detach()
        pairs = torch.view_as_complex(h.reshape(ROWS, -1, 2))
        return (
            h,
            # floating and complex, in one boundary
            h.double() * 2,
            *(h.to(dtype).t() for dtype in NARROW),
            pairs,
            pairs.to(torch.complex128).conj(),
            # scalars, and tensors without elements
            h.mean(),
            h.double().sum(),
            h[:0],
            still[:, :0],
            torch.zeros(0, 4, dtype=torch.int64),
            # used by some micro-batches only: the others give no gradient
            h.sin(),
            x[0, 0] > 0,
            # without a gradient
            still.cos(),
            still.double().amax(),
            still.to(torch.float8_e5m2),
            pairs.detach(),
            torch.linspace(0, 1, WIDTH, dtype=torch.float64),
            still > 0,
            *((still.abs() * 9).to(dtype) for dtype in WHOLE),
            still.argmax(),
            x.shape[-1],
            # floating, and nothing ever reads it
            h.exp(),
            *(h[None, :, None, index % WIDTH] * index for index in range(MANY)),
        )


class Relays(Counted):
    """Trains on the first value, and hands on the rest."""

    def forward(self, first: Tensor, *rest: Any) -> tuple[Any, ...]:
        return first + self.trunk(first), *rest


class Receives(Counted):
    """Reads everything but what nobody reads."""

    def forward(self, h: Tensor, *rest: Any) -> Tensor:
        wide, half, brief, eighth, turning, wound = rest[:6]
        mean, total, empty, hollow, nothing, some, use = rest[6:13]
        still, most, tiny, fixed, line, positive = rest[13:19]
        whole, best, size = rest[19:25], rest[25], rest[26]
        many = rest[28:]
        h = self.trunk(h) + (wide * line).float() / size
        h = h + (half.float() + brief.float() + eighth.float()).t()
        h = h + (turning.abs() + wound.abs().float()).sum(-1, keepdim=True)
        h = h * mean + total.float() + empty.sum() + hollow.sum() + nothing.sum()
        if use:
            h = h + some
        h = h * positive + still * most.float() + tiny.float()
        h = h + fixed.abs().sum() + sum(each.float() for each in whole) + best
        return torch.tanh((h + torch.cat(many, 0).sum((0, 1)) / MANY) / 50)


def every_kind(stages: int, *, checkpointed: bool = False) -> Case:
    """Return a case of that many stages, each with a part of its own."""
    values = len(Sends()(torch.zeros(ROWS, WIDTH)))
    relays = [f"relay{number}" for number in range(stages - 2)]
    part = functools.partial(Part, checkpointed=checkpointed)

    def build() -> nn.Module:
        return Parts(
            sends=Sends(), **{name: Relays() for name in relays}, receives=Receives()
        )

    return Case(
        build=build,
        parts=[
            part(path="sends", outputs=values),
            *(part(path=name, inputs=values, outputs=values) for name in relays),
            part(path="receives", inputs=values),
        ],
        bounds=tuple(range(stages + 1)),
        batches=vectors,
        forward=supervised(F.mse_loss),
        loss_fn=F.mse_loss,
        learning_rate=0.5,
    )


# Fewer kinds, in segments that need not be stages.


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        hidden = self.enter(x)
        wide = self.side(hidden).double()
        use_wide = x[0, 0] > 0  # differs by micro-batch
        return (
            x > 0,
            wide,
            hidden.argmax(-1),
            hidden,
            torch.linspace(0, 1, WIDTH, dtype=torch.float64),
            x.shape[-1],
            use_wide,
            torch.view_as_complex(hidden.reshape(ROWS, -1, 2)),
            hidden.to(torch.bfloat16).t(),
        )


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *values: Any) -> tuple[Any, ...]:
        mask, wide, best, hidden, line, size, use_wide, turning, narrow = values
        hidden = self.linear(hidden * mask) + F.one_hot(best, WIDTH)
        return mask, wide, hidden, line, size, use_wide, turning, narrow


class Back(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, *values: Any) -> Tensor:
        mask, wide, hidden, line, size, use_wide, turning, narrow = values
        if use_wide:  # else neither wide nor turning gets a gradient
            hidden = hidden + (wide * line).float() / size
            hidden = hidden + turning.abs().sum(-1, keepdim=True)
        result: Tensor = self.leave(hidden * ~mask + narrow.t().float())
        return result


def mixed(bounds: tuple[int, ...], *, checkpointed: bool = False) -> Case:
    sizes = [("front", 1, 9), ("middle", 9, 8), ("back", 8, 1)]
    return Case(
        build=lambda: Parts(front=Front(), middle=Middle(), back=Back()),
        parts=[
            Part(path=path, inputs=i, outputs=o, checkpointed=checkpointed)
            for path, i, o in sizes
        ],
        bounds=bounds,
        batches=vectors,
        forward=supervised(F.mse_loss),
        loss_fn=F.mse_loss,
    )
