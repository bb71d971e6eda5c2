"""Small modules, each with one habit that a careless recording would lose."""

from __future__ import annotations

import copy
import dataclasses
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Toy(nn.Module):
    """Two linear layers, between and around which a test puts its habit."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)


class WritesColumn(Toy):
    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 1
        y[:, 0] = 3.0
        return self.second(y)


class WritesView(Toy):
    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 1
        half = y[:, :3]
        z = self.second(y * 2)
        half.mul_(2)
        half += 1
        return z + y


class FillsRows(Toy):
    """Collects differentiable rows in memory that was made without gradients."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.new_empty(x.shape[0], 2, 6)
        rows[:, 0] = self.first(x)
        rows[:, 1] = torch.tanh(rows[:, 0])
        return self.second(rows.flatten(1)[:, 3:9])


@dataclasses.dataclass
class State:
    """What one layer hands to the next."""

    main: Tensor
    skip: Tensor | None = None


class PassesState(Toy):
    """Layers hand each other a dataclass that holds tensors."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, state: State) -> State:
            h = torch.tanh(self.inner(state.main))
            return State(h if state.skip is None else h + state.skip, state.main)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        state = State(self.first(x))
        for layer in self.layers:
            state = layer(state)
        return self.second(state.main)


class Vmaps(Toy):
    """Maps over its weights, or over one of its modules."""

    def __init__(self, *, module: bool) -> None:
        super().__init__()
        self.module = module
        self.weights = nn.Parameter(torch.ones(3, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.module:
            return torch.vmap(self.second)(h)
        return torch.vmap(lambda weight: torch.tanh(h @ weight))(self.weights).sum(0)


class Sparse(Toy):
    """Mixes the samples by a sparse matrix that is made in the forward."""

    layout = torch.sparse_coo

    def forward(self, x: Tensor) -> Tensor:
        ring = torch.eye(x.shape[0]).roll(1, 0).to_sparse(layout=self.layout)
        return self.second(torch.sparse.mm(ring, self.first(x)))


class SparseRows(Sparse):
    """The same, with its rows compressed."""

    layout = torch.sparse_csr


class Cond(Toy):
    """A branch as an operator."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,)))


class OwnGenerator(Toy):
    """Draws from generators that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.others = {"shift": torch.Generator().manual_seed(4)}

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * torch.rand(6, generator=self.generator)
        return self.second(h + torch.rand(6, generator=self.others["shift"]))


class ReturnsEither(Toy):
    """Runs the same operations in both modes and returns another of them."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        k = self.second(h)
        return h if self.training else k


class CopiesObject(Toy):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(copy.copy(self.first(x)))


class WritesInput(Toy):
    """The end of the model reads what its beginning wrote into the input."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x + 0)
        x[:, 0] = 5.0
        return self.second(h) - x


class ReturnsWrittenInput(Toy):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x + 0)
        x[:, 0] = 5.0
        return self.second(h), x


class FillsMask(Toy):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(6, device=x.device)
        mask[2:] = 1.0
        h = self.first(x) + mask
        mask.add_(1.0)
        return self.second(h) * mask


class FillsMaskFromData(Toy):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones_like(x)
        mask[x > 0] = 0.5
        return self.second(self.first(x) * mask) * mask


class Counts(Toy):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        h = self.first(x)
        return self.second(h) * self.steps


class Replaces(Toy):
    """Puts a new tensor in its buffer's place."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps = self.steps + 1
        return self.second(self.first(x)) * self.steps


class Inside(nn.Module):
    """Puts a module between two linear layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.inner = inner
        self.after = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class SharedNorm(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(self.norm(x))))


class FunctionalNorm(Toy):
    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        h = F.batch_norm(x, self.mean, self.var, training=self.training)
        h = self.first(h)
        h = F.batch_norm(h, self.mean, self.var, training=self.training)
        return self.second(h)


class PythonDropout(Toy):
    def forward(self, x: Tensor) -> Tensor:
        rate = 0.5 if self.training else 0.0
        return self.second(F.dropout(self.first(x), rate))


class Teacher(Toy):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = torch.tanh(self.first(x))
        return self.second(self.first(x)) - target * 2


class InferenceTeacher(Toy):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            target = self.first(x).argmax(-1)
        return self.second(self.first(x)) * target.clone().unsqueeze(-1)


class Autocast(Toy):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.first(x)
            h = h @ h.T
        return self.second(x + h.float().mean())


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


class Reverses(Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(Reverse.apply(h, 0.5)) + h


class DrawsData(Toy):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(6)
        return self.second(self.first(x) + noise) * noise + torch.randn_like(x)


class LayerDrop(Toy):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if torch.rand([]) < self.rate:
            return self.second(x)
        return self.second(self.first(x))


class RandomScale(Toy):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * torch.rand(()).item())


class HostDraw(Toy):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        draw = random.random() if self.source == "random" else np.random.rand()
        return self.second(self.first(x) * float(draw))


class ReadsValue(Toy):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.how == "item":
            return self.second(h * h.mean().item())
        if self.how == "bool":
            return self.second(h if h.sum() > 0 else -h)
        if self.how == "nonzero":
            return self.second(h) * len(torch.nonzero(h > 0))
        if self.how == "numpy":
            return self.second(h) + torch.from_numpy(h.detach().numpy()).mean()
        return self.second(h) * float(f"{h.sum():.2f}")


class TwiceTheSame(Toy):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.second(self.first(x))
        return h, h


@dataclasses.dataclass
class Answer:
    main: Tensor
    extra: Any = None


class Output(Toy):
    """Returns its result in one of many forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        y = self.second(h)
        forms: dict[str, Any] = {
            "tensor": y,
            "tuple": (y, h),
            "list": [y, h],
            "dict": {"y": y, "h": h},
            "nested": {"a": [y, (h, None)], "b": 3, "c": "text"},
            "dataclass": Answer(main=y, extra={"h": h}),
            "constants": (y, None, True, 2.5),
            "parameter": (y, self.first.weight),
            "input": (y, x),
            "max": y.max(dim=1),
        }
        return forms[self.form]


class Unregistered(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(6.0)
        self.tables = [torch.full((6,), 2.0)]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.table) + self.tables[0]


class RootParameter(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x * self.scale)
        return self.second(h) * self.scale


class SharedModule(Toy):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.first(x))
        return self.second(x)


class TensorHook(Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h.register_hook(lambda gradient: gradient * 2)
        return self.second(h)


class Branches(Toy):
    """Runs another layer in train mode."""

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) if self.training else self.second(x)


class OffersFastPath(Toy):
    """In train mode it prepares a kernel's arguments, in vain, in another order."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            _ = self.second.weight.squeeze(), self.first.weight.exp()
        h = F.linear(x, self.first.weight).tanh()
        return F.linear(h, self.second.weight)


class PicksOperand(Toy):
    """The same operations in both modes, on another operand."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        return (a if self.training else b) * 2


class ReturnsByMode(Toy):
    def forward(self, x: Tensor) -> Any:
        h = self.first(x)
        y = self.second(h)
        return (y, h) if self.training else y


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.b = nn.Conv2d(4, 3, 3, padding=1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x.contiguous(memory_format=torch.channels_last))
        return self.b(self.drop(h).transpose(2, 3))


class Steps(Toy):
    """Keeps what it has seen, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.log: list[Any] = []
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x)
        self.last = x
        return self.second(self.first(x))


class Frozen(nn.Module):
    """Its inner module was put in eval mode by the user."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
        self.outer = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


def _double(module: nn.Module, before: Any, after: Any) -> tuple[Tensor]:
    return (before[0] * 2,)


class BackwardHook(Toy):
    """A gradient of its inner module is doubled by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inside(nn.Tanh())
        self.inner.register_full_backward_hook(_double)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.inner(self.first(x)))


class Checkpoints(Toy):
    """Recomputes by itself."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.inner = Inside(nn.Dropout(0.5))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = checkpoint(self.inner, h, use_reentrant=self.reentrant)
        return self.second(h)


class Sizes(nn.Module):
    """Reshapes by batch and length in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.positions = nn.Embedding(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.first(x) + self.positions(torch.arange(length, device=x.device))
        h = h.reshape(batch * length, width)
        h = h.view(batch, length, 2, 3).transpose(1, 2)
        h = h.reshape(batch, length, width)
        return self.second(h)[:, : length - 1] / length


class CapsLength(Toy):
    """A length that stops following the input at 16."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(h[:, : min(x.shape[1], 16)])


class BranchesOnSize(Toy):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(h if x.shape[0] == 2 else -h)


class WritesDropout(Toy):
    """In eval mode, dropout's result is its argument: the write hits both."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        early = h * 2
        d = self.drop(h)
        d += 1
        return self.second(d) + h + self.second(early)
